// Turns that go on without their client: detach, poll, wait, abort.

import {
  agent,
  assert,
  assertRefused,
  beyondGenkit,
  chainOf,
  echoed,
  jsonOf,
  model,
  newSessionId,
  plainTurn,
  post,
  streamedTurn,
  test,
  turnBody,
  until,
  user,
} from './support.mjs';

const SOON = { intervalMs: 20 };
const detached = (text, init) => ({ data: { message: user(text), detach: true }, init });

/** A chat with one good turn, and the task of a detached second one. */
async function detachedChat(text) {
  const chat = agent('echo').chat();
  await chat.send('one');
  const base = chat.snapshotId;
  return { chat, base, task: await chat.detach(text) };
}

test('a detached turn answers at once, with one frame', async () => {
  const { chunks, result } = await streamedTurn('echo', detached('slow 1500', {}));
  assert.deepEqual(chunks, []);
  const { sessionId, snapshotId, ...rest } = result;
  assert.ok(sessionId && snapshotId);
  assert.deepEqual(rest, { finishReason: 'detached' });
  const row = await agent('echo').getSnapshot(snapshotId);
  assert.equal(row.status, 'pending', 'the answer came before the turn ended');
  assert.equal(row.sessionId, sessionId);
  assert.match(row.heartbeatAt, /^\d{4}-.*Z$/);
});

test('a detached turn ends in the row it began with', async () => {
  const { chat, task } = await detachedChat('slow 200');
  assert.equal(chat.snapshotId, task.snapshotId);
  const statuses = [];
  let last;
  for await (const snapshot of task.poll(SOON)) {
    assert.equal(snapshot.snapshotId, task.snapshotId);
    statuses.push(snapshot.status);
    last = snapshot;
  }
  assert.equal(statuses.at(0), 'pending');
  assert.equal(statuses.at(-1), 'completed');
  assert.equal(last.finishReason, 'stop');
  assert.deepEqual(last.state.messages, [...echoed('one'), user('slow 200'), model('slow done')]);
  assert.deepEqual(last.state.custom, { status: 'idle', turns: 2, last: 'slow 200' });
});

test('a chat goes on from a detached turn that completed', async () => {
  const { chat, task } = await detachedChat('slow 50');
  await task.wait(SOON);
  await chat.send('three');
  const stored = await agent('echo').getSnapshot(chat.snapshotId);
  assert.equal(stored.state.custom.turns, 3);
  assert.equal(stored.parentId, task.snapshotId);
});

test('a pending turn cannot be gone on from', async () => {
  const { task } = await detachedChat('slow 3000');
  const { result } = await streamedTurn('echo', turnBody('too soon', { snapshotId: task.snapshotId }));
  assert.equal(result.finishReason, 'failed');
  assert.equal(result.error.status, 'INVALID_ARGUMENT');
  assert.match(result.error.message, /not resumable.*pending/);
  await task.abort();
});

test('a detached turn that fails says so in its row', async () => {
  const { task } = await detachedChat('fail it is broken');
  const row = await task.wait(SOON);
  assert.equal(row.status, 'failed');
  assert.deepEqual(row.error, { status: 'UNAVAILABLE', message: 'it is broken', details: { hint: 'demo' } });
  const { result } = await streamedTurn('echo', turnBody('x', { snapshotId: task.snapshotId }));
  assert.match(result.error.message, /not resumable.*failed/);
});

test('an aborted turn stays aborted', async () => {
  const { chat, base, task } = await detachedChat('slow 1000');
  const wouldEnd = Date.now() + 1_000;
  // Genkit 1.42 answers what the row was, a later one what it has become.
  assert.ok(['pending', 'aborted'].includes(await task.abort()));
  assert.equal((await task.wait(SOON)).status, 'aborted');
  await until('the turn would have ended', async () => {
    assert.equal((await agent('echo').getSnapshot(task.snapshotId)).status, 'aborted');
    return Date.now() > wouldEnd + 300;
  });
  const { result } = await streamedTurn('echo', turnBody('x', { snapshotId: task.snapshotId }));
  assert.match(result.error.message, /not resumable.*aborted/);
  const next = await agent('echo').chat({ snapshotId: base }).send('two');
  assert.equal(next.sessionId, chat.sessionId);
  assert.deepEqual((await agent('echo').getSnapshot(next.snapshotId)).state.messages, echoed('one', 'two'));
});

test('an abort leaves a row that has ended as it is, and says what it is', async () => {
  const chat = agent('echo').chat();
  await chat.send('one');
  const before = await agent('echo').getSnapshot(chat.snapshotId);
  assert.equal(await chat.abort(), 'completed');
  assert.equal(await agent('echo').abort(chat.snapshotId), 'completed');
  assert.deepEqual(await agent('echo').getSnapshot(chat.snapshotId), before);

  const { chunks } = await streamedTurn('echo', turnBody('fail x', { snapshotId: chat.snapshotId }));
  assert.equal(await agent('echo').abort(chunks.at(-1).turnEnd.snapshotId), 'failed');
});

test('an abort of nothing has no status', async () => {
  const snapshotId = newSessionId('nope');
  const answer = await post('echo/abort', { data: { snapshotId } });
  assert.equal(answer.status, 200);
  assert.deepEqual(jsonOf(answer), { result: { snapshotId } });
  assert.equal(await agent('echo').abort(snapshotId), undefined);
});

test('an abort needs a snapshot id', async () => {
  for (const data of [undefined, {}, { snapshotId: 5 }]) {
    const answer = await post('echo/abort', { data });
    assertRefused({ status: answer.status, body: jsonOf(answer) }, 400, 'INVALID_ARGUMENT');
  }
});

test('a client-managed agent cannot detach or abort', async () => {
  assertRefused(await plainTurn('echoClient', detached('hi', {})), 400, 'FAILED_PRECONDITION', /store/);
  // Not through the client: an error that is the first thing it hears of a detached turn is rejected twice there, once
  // with nobody listening, which ends the process.
  assert.equal((await streamedTurn('echoClient', detached('hi', {}))).error.status, 'FAILED_PRECONDITION');
  const answer = await post('echoClient/abort', { data: { snapshotId: 'any' } });
  assertRefused({ status: answer.status, body: jsonOf(answer) }, 400, 'FAILED_PRECONDITION', /store/);
});

beyondGenkit('a detached turn that completes keeps its parent', async () => {
  const { base, task } = await detachedChat('slow 50');
  const row = await task.wait(SOON);
  assert.equal(row.parentId, base);
  assert.deepEqual(
    (await chainOf(agent('echo'), task.snapshotId)).map((s) => s.snapshotId),
    [task.snapshotId, base]
  );
});

beyondGenkit('a session found by its id is at its detached turn', async () => {
  const { chat, task } = await detachedChat('slow 50');
  await task.wait(SOON);
  const latest = await agent('echo').getSnapshot({ sessionId: chat.sessionId });
  assert.equal(latest.snapshotId, task.snapshotId);
  const loaded = await agent('echo').loadChat({ sessionId: chat.sessionId });
  await loaded.send('three');
  assert.equal(loaded.state.turns, 3);
});

beyondGenkit('who waits for a snapshot is answered when its turn has ended', async () => {
  const { task } = await detachedChat('slow 400');
  const waiting = await post('echo/waitForSnapshot', { data: { snapshotId: task.snapshotId } });
  assert.equal(waiting.status, 200);
  assert.equal(jsonOf(waiting).result.status, 'completed');
  const ended = await post('echo/waitForSnapshot', { data: { snapshotId: task.snapshotId } });
  assert.deepEqual(jsonOf(ended), jsonOf(waiting));
  const missing = await post('echo/waitForSnapshot', { data: { snapshotId: newSessionId('nope') } });
  assertRefused({ status: missing.status, body: jsonOf(missing) }, 404, 'NOT_FOUND');
});
