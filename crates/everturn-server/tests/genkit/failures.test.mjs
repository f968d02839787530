// A turn that fails costs that turn and nothing else. What the client does with a failed result decides much of how the
// result has to look: it keeps a message it finds there, never takes patches back, and without a snapshot id sends the
// state it made up from patches, which a server-managed agent must refuse.

import {
  agent,
  AgentError,
  assert,
  beyondGenkit,
  chainOf,
  echoed,
  model,
  newSessionId,
  patchesOf,
  plainTurn,
  rejection,
  streamedTurn,
  test,
  turnBody,
  user,
} from './support.mjs';

const BROKEN = { status: 'UNAVAILABLE', message: 'it is broken', details: { hint: 'demo' } };

/** A chat with one good turn. */
async function goodChat() {
  const chat = agent('echo').chat();
  await chat.send('good');
  return chat;
}

test('a failed turn rejects with the status, the message and the details the agent gave', async () => {
  const chat = await goodChat();
  const error = await rejection(chat.send('fail it is broken'));
  assert.ok(error instanceof AgentError);
  assert.deepEqual({ status: error.status, message: error.message, details: error.details }, BROKEN);
  assert.equal(error.response.finishReason, 'failed');
});

test('a failed turn points at the last good snapshot', async () => {
  const chat = await goodChat();
  const good = chat.snapshotId;
  const error = await rejection(chat.send('fail it is broken'));
  assert.equal(error.snapshotId, good);
  assert.equal(chat.snapshotId, good);
});

test('a failed turn without streaming is a result too', async () => {
  const { status, body } = await plainTurn(
    'echo',
    turnBody('fail it is broken', { snapshotId: (await goodChat()).snapshotId })
  );
  assert.equal(status, 200);
  assert.equal(body.result.finishReason, 'failed');
  assert.deepEqual(body.result.error, BROKEN);
});

test('a chat goes on after a failure, without what the failed turn did', async () => {
  const chat = await goodChat();
  const good = chat.snapshotId;
  await rejection(chat.send('fail it is broken'));
  await chat.send('again');
  const stored = await agent('echo').getSnapshot(chat.snapshotId);
  assert.deepEqual(stored.state.messages, echoed('good', 'again'));
  assert.deepEqual(stored.state.custom, { status: 'idle', turns: 2, last: 'again' });
  assert.equal(stored.parentId, good);
  assert.deepEqual(chat.state, { status: 'idle', turns: 2, last: 'again' });
});

test('a session found by its id goes on from the last good turn', async () => {
  const chat = await goodChat();
  await rejection(chat.send('fail it is broken'));
  const { snapshotId } = await agent('echo').chat({ sessionId: chat.sessionId }).send('again');
  const chain = await chainOf(agent('echo'), snapshotId);
  assert.deepEqual(chain[0].state.messages, echoed('good', 'again'));
  assert.deepEqual(
    chain.map((s) => s.status),
    ['completed', 'completed']
  );
});

test('a failure after a failure changes nothing', async () => {
  const chat = await goodChat();
  for (const text of ['fail a', 'fail b', 'fail c']) await rejection(chat.send(text));
  await chat.send('again');
  const stored = await agent('echo').getSnapshot(chat.snapshotId);
  assert.deepEqual(stored.state.messages, echoed('good', 'again'));
});

test('a failed turn has a snapshot of its own, to read and not to resume', async () => {
  const chat = await goodChat();
  const { chunks, result } = await streamedTurn('echo', turnBody('fail it is broken', { snapshotId: chat.snapshotId }));
  const { turnEnd } = chunks.at(-1);
  assert.equal(turnEnd.finishReason, 'failed');
  assert.notEqual(turnEnd.snapshotId, result.snapshotId);
  const failed = await agent('echo').getSnapshot(turnEnd.snapshotId);
  assert.equal(failed.status, 'failed');
  assert.equal(failed.finishReason, 'failed');
  assert.deepEqual(failed.error, BROKEN);
  assert.equal(failed.parentId, chat.snapshotId);
  assert.equal(failed.sessionId, chat.sessionId);
  assert.deepEqual(failed.state.messages, [...echoed('good'), user('fail it is broken'), model('partial')]);
});

test('artifacts are still there after a failure', async () => {
  const chat = agent('echo').chat();
  await chat.send('artifact a.md body');
  const before = structuredClone(chat.artifacts);
  await rejection(chat.send('fail it is broken'));
  assert.deepEqual(chat.artifacts, before);
  await chat.send('again');
  assert.deepEqual(chat.artifacts, before);
});

beyondGenkit('a chat takes the messages of a failed turn back', async () => {
  const chat = await goodChat();
  const error = await rejection(chat.send('fail it is broken'));
  assert.deepEqual(chat.messages, echoed('good'));
  assert.deepEqual(error.response.messages, echoed('good'));
  await chat.send('again');
  assert.deepEqual(chat.messages, echoed('good', 'again'));
});

beyondGenkit('a chat takes the custom state of a failed turn back', async () => {
  const chat = await goodChat();
  await rejection(chat.send('fail it is broken'));
  assert.deepEqual(chat.state, { status: 'idle', turns: 1, last: 'good' });
});

beyondGenkit('the last chunk before a failed end is a patch back to the last good custom state', async () => {
  const { snapshotId } = await goodChat();
  const { chunks, result } = await streamedTurn('echo', turnBody('fail it is broken', { snapshotId }));
  const value = { status: 'idle', turns: 1, last: 'good' };
  assert.deepEqual(chunks.at(-2), { customPatch: [{ op: 'replace', path: '', value }] });
  const { sessionId, ...rest } = result;
  assert.ok(sessionId);
  assert.deepEqual(rest, { finishReason: 'failed', error: BROKEN, snapshotId });
});

beyondGenkit('a first turn that fails is patched back to no custom state at all', async () => {
  const { chunks } = await streamedTurn('echo', turnBody('fail it is broken'));
  assert.deepEqual(patchesOf(chunks).at(-1), [{ op: 'replace', path: '' }]);
});

beyondGenkit('a first turn that fails leaves a snapshot to go on from', async () => {
  const { chunks, result } = await streamedTurn('echo', turnBody('fail it is broken'));
  assert.deepEqual(result.error, BROKEN);
  const seed = await agent('echo').getSnapshot(result.snapshotId);
  assert.equal(seed.status, 'completed');
  assert.equal(seed.sessionId, result.sessionId);
  assert.ok(!('parentId' in seed));
  assert.deepEqual(seed.state.messages ?? [], []);
  assert.deepEqual(seed.state.artifacts ?? [], []);
  assert.equal(seed.state.custom, undefined);
  const failed = await agent('echo').getSnapshot(chunks.at(-1).turnEnd.snapshotId);
  assert.equal(failed.status, 'failed');
  assert.ok(!('parentId' in failed), 'there was nothing before it');
});

beyondGenkit('a chat goes on after its first turn failed', async () => {
  const chat = agent('echo').chat();
  const error = await rejection(chat.send('fail it is broken'));
  assert.deepEqual({ status: error.status, message: error.message, details: error.details }, BROKEN);
  assert.ok(error.snapshotId);
  assert.deepEqual(chat.messages, []);
  assert.equal(chat.state, undefined);
  const { sessionId } = chat;

  const response = await chat.send('again');
  assert.equal(response.sessionId, sessionId);
  assert.deepEqual(chat.messages, echoed('again'));
  assert.deepEqual(chat.state, { status: 'idle', turns: 1, last: 'again' });
  const stored = await agent('echo').getSnapshot(chat.snapshotId);
  assert.deepEqual(stored.state.messages, echoed('again'));
});

test('a session whose first turn failed can be started again by its id', async () => {
  const sessionId = newSessionId();
  await rejection(agent('echo').chat({ sessionId }).send('fail it is broken'));
  const chat = agent('echo').chat({ sessionId });
  await chat.send('again');
  assert.equal(chat.sessionId, sessionId);
  assert.deepEqual((await agent('echo').getSnapshot(chat.snapshotId)).state.messages, echoed('again'));
});
