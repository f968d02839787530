// Artifacts: same name replaces in place, every turn's result lists them all, snapshots keep what was there then.

import { agent, assert, streamedTurn, test, turnBody } from './support.mjs';

const artifact = (name, text, turn) => ({ name, parts: [{ text }], metadata: { turn } });

test('an artifact arrives as a chunk, in the response, in the chat and in the snapshot', async () => {
  const chat = agent('echo').chat();
  const turn = chat.sendStream('artifact doc.md first version');
  const expected = artifact('doc.md', 'first version', 1);
  const streamed = [];
  for await (const chunk of turn.stream) if (chunk.artifact) streamed.push(chunk.artifact);
  const response = await turn.response;
  assert.deepEqual(streamed, [expected]);
  assert.equal(response.text, 'stored doc.md');
  assert.deepEqual(response.artifacts, [expected]);
  assert.deepEqual(chat.artifacts, [expected]);
  const stored = await agent('echo').getSnapshot(chat.snapshotId);
  assert.deepEqual(stored.state.artifacts, [expected]);
});

test('an artifact turn streams the artifact and one piece of text', async () => {
  const { chunks } = await streamedTurn('echo', turnBody('artifact doc.md v1'));
  const kinds = chunks.map((c) => Object.keys(c)[0]);
  assert.deepEqual(kinds, ['customPatch', 'artifact', 'modelChunk', 'customPatch', 'turnEnd']);
});

test('an artifact of the same name is replaced and keeps its place', async () => {
  const chat = agent('echo').chat();
  await chat.send('artifact a.md one');
  await chat.send('artifact b.md two');
  const response = await chat.send('artifact a.md three');
  const expected = [artifact('a.md', 'three', 3), artifact('b.md', 'two', 2)];
  assert.deepEqual(response.artifacts, expected);
  assert.deepEqual(chat.artifacts, expected);
});

test('a turn that makes no artifact still lists those of the session', async () => {
  const chat = agent('echo').chat();
  await chat.send('artifact a.md one');
  const response = await chat.send('plain');
  assert.deepEqual(response.raw.artifacts, [artifact('a.md', 'one', 1)]);
});

test('a session without artifacts has no list of them in its result', async () => {
  const { result } = await streamedTurn('echo', turnBody('plain'));
  assert.ok(!('artifacts' in result));
});

test('an older snapshot keeps the older version', async () => {
  const chat = agent('echo').chat();
  const first = (await chat.send('artifact a.md old')).snapshotId;
  const second = (await chat.send('artifact a.md new')).snapshotId;
  assert.deepEqual((await agent('echo').getSnapshot(first)).state.artifacts, [artifact('a.md', 'old', 1)]);
  assert.deepEqual((await agent('echo').getSnapshot(second)).state.artifacts, [artifact('a.md', 'new', 2)]);
});

test('artifacts of a client-managed chat travel with its state', async () => {
  const chat = agent('echoClient').chat();
  await chat.send('artifact a.md one');
  const response = await chat.send('artifact a.md two');
  assert.deepEqual(response.raw.state.artifacts, [artifact('a.md', 'two', 2)]);
  assert.deepEqual(chat.artifacts, [artifact('a.md', 'two', 2)]);
});
