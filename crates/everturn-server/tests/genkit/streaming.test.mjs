// What arrives while a turn runs.

import { agent, applyPatch, assert, patchesOf, streamedTurn, test, turnBody } from './support.mjs';

async function collect(turn) {
  const chunks = [];
  for await (const chunk of turn.stream) chunks.push(chunk);
  return { chunks, response: await turn.response };
}

test('the text arrives in pieces that add up to the answer', async () => {
  const { chunks, response } = await collect(agent('echo').chat().sendStream('hello there'));
  const spoken = chunks.filter((c) => c.raw.modelChunk);
  assert.deepEqual(
    spoken.map((c) => c.text),
    ['echo: ', 'hello there']
  );
  assert.deepEqual(
    spoken.map((c) => c.accumulatedText),
    ['echo: ', 'echo: hello there']
  );
  assert.equal(response.text, 'echo: hello there');
});

test('the custom state of a chat is live while its turn streams', async () => {
  const chat = agent('echo').chat();
  const turn = chat.sendStream('hi');
  const seen = [];
  for await (const chunk of turn.stream) {
    if (chunk.raw.customPatch) {
      assert.deepEqual(chunk.custom, chat.state);
      seen.push(structuredClone(chat.state));
    }
  }
  assert.deepEqual(seen, [{ status: 'working' }, { status: 'idle', turns: 1, last: 'hi' }]);
  await turn.response;
});

test('the first patch of each turn replaces the whole document, so that any client can start there', async () => {
  const first = await streamedTurn('echo', turnBody('one'));
  const second = await streamedTurn('echo', turnBody('two', { snapshotId: first.result.snapshotId }));
  assert.deepEqual(patchesOf(first.chunks)[0], [{ op: 'replace', path: '', value: { status: 'working' } }]);
  assert.deepEqual(patchesOf(second.chunks)[0], [
    { op: 'replace', path: '', value: { status: 'working', turns: 1, last: 'one' } },
  ]);
});

test('later patches say only what changed', async () => {
  const first = await streamedTurn('echo', turnBody('same'));
  const second = await streamedTurn('echo', turnBody('same', { snapshotId: first.result.snapshotId }));
  const [whole, change, ...more] = patchesOf(second.chunks);
  assert.deepEqual(more, []);
  const byPath = change.toSorted((a, b) => a.path.localeCompare(b.path));
  assert.deepEqual(byPath, [
    { op: 'replace', path: '/status', value: 'idle' },
    { op: 'replace', path: '/turns', value: 2 },
  ]);
  const folded = applyPatch(applyPatch(undefined, whole), change);
  assert.deepEqual(folded, { status: 'idle', turns: 2, last: 'same' });
});

test('patches add up to the custom state that is stored', async () => {
  const { chunks, result } = await streamedTurn('echo', turnBody('hi'));
  const folded = patchesOf(chunks).reduce(applyPatch, undefined);
  const stored = await agent('echo').getSnapshot(result.snapshotId);
  assert.deepEqual(folded, stored.state.custom);
});

test('chunks are sent when they happen, not when the turn ends', async () => {
  const turn = agent('echo').chat().sendStream('slow 1500');
  let firstAt;
  for await (const _ of turn.stream) firstAt ??= Date.now();
  const response = await turn.response;
  assert.equal(response.text, 'slow done');
  // A server that holds chunks back leaves no gap at all; a loaded machine may shorten it.
  assert.ok(Date.now() - firstAt > 300, `the first chunk came ${Date.now() - firstAt} ms before the end`);
});

test('the last chunk ends the turn and names its snapshot', async () => {
  const chat = agent('echo').chat();
  const { chunks, response } = await collect(chat.sendStream('hi'));
  assert.deepEqual(chunks.at(-1).raw, { turnEnd: { snapshotId: response.snapshotId, finishReason: 'stop' } });
});
