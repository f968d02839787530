// Starts that are refused. Some by an error (HTTP status, or an error frame), some by a result that says it failed.
// The client drops the session id when it has a snapshot id, so the check of the two together is asked for by hand.

import {
  agent,
  AgentError,
  assert,
  assertRefused,
  echoed,
  newSessionId,
  plainTurn,
  rejection,
  streamedTurn,
  test,
  turnBody,
} from './support.mjs';

async function assertThrown(name, init, code, why) {
  assertRefused(await plainTurn(name, turnBody('hi', init)), 400, code, why);
  const { chunks, error } = await streamedTurn(name, turnBody('hi', init));
  assert.deepEqual(chunks, []);
  assert.equal(error.status, code);
  assert.match(error.message, why);
}

/** A start that answers `failed`: no session, no snapshot, nothing streamed, and nothing left behind. */
async function assertGraceful(name, init, code, why) {
  const streamed = await streamedTurn(name, turnBody('hi', init));
  const { status, body } = await plainTurn(name, turnBody('hi', init));
  assert.equal(status, 200);
  assert.deepEqual(streamed.chunks, []);
  for (const result of [streamed.result, body.result]) {
    assert.equal(result.finishReason, 'failed');
    assert.equal(result.error.status, code);
    assert.match(result.error.message, why);
    assert.ok(!('sessionId' in result) && !('snapshotId' in result) && !('message' in result));
  }
}

async function session(name = 'echo') {
  const chat = agent(name).chat();
  await chat.send('one');
  return chat;
}

test('a snapshot and its own session start there', async () => {
  const { snapshotId, sessionId } = await session();
  const { result } = await streamedTurn('echo', turnBody('two', { snapshotId, sessionId }));
  assert.equal(result.sessionId, sessionId);
  assert.deepEqual((await agent('echo').getSnapshot(result.snapshotId)).state.messages, echoed('one', 'two'));
});

test('a snapshot of another session is a mismatch that names both', async () => {
  const { snapshotId, sessionId } = await session();
  for (const other of [(await session()).sessionId, newSessionId('nobody')]) {
    const why = new RegExp(`${snapshotId}.* does not belong to session ${other}.*${sessionId}`);
    await assertThrown('echo', { snapshotId, sessionId: other }, 'INVALID_ARGUMENT', why);
  }
  const latest = await agent('echo').getSnapshot({ sessionId });
  assert.equal(latest.snapshotId, snapshotId, 'nothing was written');
});

test('state is not for a server-managed agent', async () => {
  await assertThrown('echo', { state: { custom: {}, messages: [] } }, 'FAILED_PRECONDITION', /server-managed store/);
  const error = await rejection(
    agent('echo')
      .chat({ state: { messages: [] } })
      .send('hi')
  );
  assert.ok(error instanceof AgentError);
  assert.equal(error.status, 'FAILED_PRECONDITION');
  assert.match(error.message, /server-managed store/);
});

test('ids are not for a client-managed agent', async () => {
  for (const init of [{ snapshotId: 'any' }, { sessionId: 'any' }]) {
    await assertThrown('echoClient', init, 'FAILED_PRECONDITION', /client-managed/);
    const error = await rejection(agent('echoClient').chat(init).send('hi'));
    assert.ok(error instanceof AgentError);
    assert.equal(error.status, 'FAILED_PRECONDITION');
    assert.match(error.message, /client-managed/);
  }
});

test('a snapshot that is not there fails the turn', async () => {
  const snapshotId = newSessionId('nope');
  await assertGraceful('echo', { snapshotId }, 'NOT_FOUND', new RegExp(snapshotId));
  const chat = agent('echo').chat({ snapshotId });
  const error = await rejection(chat.send('hi'));
  assert.ok(error instanceof AgentError);
  assert.equal(error.status, 'NOT_FOUND');
  assert.deepEqual(chat.messages, []);
});

test('the snapshot of another agent is not there', async () => {
  const { snapshotId } = await session('redact');
  await assertGraceful('echo', { snapshotId }, 'NOT_FOUND', new RegExp(snapshotId));
});

test('a failed snapshot cannot be gone on from', async () => {
  const { snapshotId } = await session();
  const { chunks } = await streamedTurn('echo', turnBody('fail once', { snapshotId }));
  const failed = chunks.at(-1).turnEnd.snapshotId;
  assert.notEqual(failed, snapshotId);
  await assertGraceful('echo', { snapshotId: failed }, 'INVALID_ARGUMENT', /not resumable.*failed/);
  const error = await rejection(agent('echo').chat({ snapshotId: failed }).send('hi'));
  assert.equal(error.status, 'INVALID_ARGUMENT');
});
