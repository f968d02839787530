// Turns that begin at a point which is not the newest: every line stays whole and can be gone on with.

import { agent, assert, chainOf, echoed, newSessionId, test, textsOf } from './support.mjs';

const messagesAt = async (snapshotId) => (await agent('echo').getSnapshot(snapshotId)).state.messages;

test('a chat from an older snapshot makes a second line, and both survive', async () => {
  const main = agent('echo').chat();
  const { snapshotId: base } = await main.send('one');
  await main.send('two');
  const side = agent('echo').chat({ snapshotId: base });
  await side.send('other');

  assert.equal(side.sessionId, main.sessionId);
  assert.deepEqual(await messagesAt(main.snapshotId), echoed('one', 'two'));
  assert.deepEqual(await messagesAt(side.snapshotId), echoed('one', 'other'));
  assert.equal((await agent('echo').getSnapshot(side.snapshotId)).parentId, base);
  assert.equal((await agent('echo').getSnapshot(main.snapshotId)).parentId, base);
});

test('both lines can be gone on with, in turn', async () => {
  const main = agent('echo').chat();
  const { snapshotId: base } = await main.send('one');
  await main.send('two');
  const side = agent('echo').chat({ snapshotId: base });
  await side.send('other');
  await main.send('three');
  await side.send('another');
  assert.deepEqual(await messagesAt(main.snapshotId), echoed('one', 'two', 'three'));
  assert.deepEqual(await messagesAt(side.snapshotId), echoed('one', 'other', 'another'));
  assert.equal(main.state.turns, 3);
  assert.equal(side.state.turns, 3);
  assert.deepEqual((await chainOf(agent('echo'), main.snapshotId)).length, 3);
  assert.deepEqual((await chainOf(agent('echo'), side.snapshotId)).length, 3);
});

test('the session stands at the line that was written last', async () => {
  const main = agent('echo').chat();
  const { snapshotId: base } = await main.send('one');
  const { snapshotId: left } = await main.send('two');
  const branchedAt = Date.parse((await agent('echo').getSnapshot(left)).createdAt);
  // Genkit tells the newest by a clock of milliseconds.
  while (Date.now() <= branchedAt) await new Promise((resolve) => setTimeout(resolve, 1));
  const side = agent('echo').chat({ snapshotId: base });
  await side.send('other');
  const latest = await agent('echo').getSnapshot({ sessionId: main.sessionId });
  assert.equal(latest.snapshotId, side.snapshotId);
});

test('one point can be gone on from many times', async () => {
  const main = agent('echo').chat({ sessionId: newSessionId('fan') });
  const { snapshotId: base } = await main.send('base');
  const ids = [];
  for (const text of ['a', 'b', 'c', 'd'])
    ids.push((await agent('echo').chat({ snapshotId: base }).send(text)).snapshotId);
  for (const [index, text] of ['a', 'b', 'c', 'd'].entries()) {
    assert.deepEqual(textsOf(await messagesAt(ids[index])), ['base', 'echo: base', text, `echo: ${text}`]);
  }
});

test('custom state and artifacts branch with the messages', async () => {
  const main = agent('echo').chat();
  const { snapshotId: base } = await main.send('artifact a.md base');
  await main.send('artifact a.md main');
  const side = await agent('echo').loadChat({ snapshotId: base });
  await side.send('artifact b.md side');
  assert.deepEqual(
    side.artifacts.map((a) => [a.name, a.parts[0].text]),
    [
      ['a.md', 'base'],
      ['b.md', 'side'],
    ]
  );
  const stored = await agent('echo').getSnapshot(main.snapshotId);
  assert.deepEqual(
    stored.state.artifacts.map((a) => [a.name, a.parts[0].text]),
    [['a.md', 'main']]
  );
  assert.equal(stored.state.custom.last, 'artifact a.md main');
});
