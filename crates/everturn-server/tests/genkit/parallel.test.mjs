// Many at once. Sessions do not know of each other; turns on one session come one after the other, and none is lost.

import { agent, assert, beyondGenkit, chainOf, echoed, newSessionId, test, textsOf } from './support.mjs';

test('twenty sessions at once keep apart', async () => {
  const chats = Array.from({ length: 20 }, () => agent('echo').chat());
  await Promise.all(
    chats.map(async (chat, n) => {
      for (const text of ['a', 'b', 'c']) await chat.send(`${n}${text}`);
    })
  );
  assert.equal(new Set(chats.map((chat) => chat.sessionId)).size, 20);
  for (const [n, chat] of chats.entries()) {
    const stored = await agent('echo').getSnapshot({ sessionId: chat.sessionId });
    assert.deepEqual(stored.state.messages, echoed(`${n}a`, `${n}b`, `${n}c`));
    assert.deepEqual(stored.state.custom, { status: 'idle', turns: 3, last: `${n}c` });
  }
});

test('slow sessions do not hold up others', async () => {
  let ended = 0;
  const slow = Array.from({ length: 5 }, () =>
    agent('echo')
      .chat()
      .send('slow 2000')
      .finally(() => (ended += 1))
  );
  const quick = await agent('echo').chat().send('quick');
  assert.equal(quick.text, 'echo: quick');
  assert.equal(ended, 0, 'a quick turn waited for a slow one of another session');
  for (const response of await Promise.all(slow)) assert.equal(response.text, 'slow done');
});

test('turns at once from one snapshot all survive, each on its own line', async () => {
  const base = await agent('echo').chat().send('base');
  const texts = Array.from({ length: 10 }, (_, n) => `line ${n}`);
  const responses = await Promise.all(
    texts.map((text) => agent('echo').chat({ snapshotId: base.snapshotId }).send(text))
  );
  assert.equal(new Set(responses.map((r) => r.snapshotId)).size, 10);
  for (const [n, response] of responses.entries()) {
    const stored = await agent('echo').getSnapshot(response.snapshotId);
    assert.deepEqual(stored.state.messages, echoed('base', texts[n]));
    assert.equal(stored.parentId, base.snapshotId);
    assert.equal(stored.sessionId, base.sessionId);
    assert.equal(stored.status, 'completed');
  }
});

// Genkit reads the newest snapshot and writes the next one with nothing in between that would keep two turns apart.
beyondGenkit('turns at once on one session come one after the other, and none is lost', async () => {
  const sessionId = newSessionId('busy');
  // Turns that take a moment, so that they meet; each a different one, to tell them apart.
  const texts = Array.from({ length: 16 }, (_, n) => `slow ${20 + n}`);
  const responses = await Promise.all(texts.map((text) => agent('echo').chat({ sessionId }).send(text)));

  const latest = await agent('echo').getSnapshot({ sessionId });
  const said = textsOf(latest.state.messages);
  const users = said.filter((_, index) => index % 2 === 0);
  assert.deepEqual(
    said,
    users.flatMap((text) => [text, 'slow done']),
    'each answer follows its question'
  );
  assert.deepEqual(users.toSorted(), texts.toSorted(), 'every turn is there once');
  assert.equal(latest.state.custom.turns, 16);

  const chain = (await chainOf(agent('echo'), latest.snapshotId)).toReversed();
  assert.deepEqual(
    chain.map((s) => s.state.custom.last),
    users,
    'one line, in the order of the messages'
  );
  const ids = responses.map((r) => r.snapshotId);
  assert.deepEqual(chain.map((s) => s.snapshotId).toSorted(), ids.toSorted(), 'its points are what was answered');
});

beyondGenkit('turns on a busy session wait for it and come after it', async () => {
  const sessionId = newSessionId('waiting');
  const slow = agent('echo').chat({ sessionId }).sendStream('slow 700');
  await slow.stream.next();
  const later = ['a', 'b', 'c'].map((text) => agent('echo').chat({ sessionId }).send(text));
  for await (const _ of slow.stream);
  await slow.response;
  await Promise.all(later);
  const { state } = await agent('echo').getSnapshot({ sessionId });
  const said = textsOf(state.messages);
  assert.deepEqual(said.slice(0, 2), ['slow 700', 'slow done']);
  assert.deepEqual(said.slice(2).toSorted(), ['a', 'b', 'c', 'echo: a', 'echo: b', 'echo: c']);
  assert.equal(state.custom.turns, 4);
});
