// Who goes away in the middle of a turn has aborted it: the session is free at once, and nothing of the turn is left to
// go on from. Genkit's own server lets the turn run to its end and writes it, but never makes a session wait for one.

import {
  agent,
  assert,
  BASE,
  beyondGenkit,
  echoed,
  newSessionId,
  plainTurn,
  rejection,
  test,
  turnBody,
  until,
} from './support.mjs';

const SLOW_MS = 5_000;
const SLOW = `slow ${SLOW_MS}`;
// Far below what the slow turn takes, far above what a loaded machine needs for a plain one.
const SOON_MS = 3_000;

/** Starts a slow turn, goes away as soon as it is known to run, and says when it would have ended. */
async function leave(init) {
  const controller = new AbortController();
  const response = await fetch(`${BASE}/echo`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', Accept: 'text/event-stream' },
    body: JSON.stringify(turnBody(SLOW, init)),
    signal: controller.signal,
  });
  const reader = response.body.getReader();
  const { value } = await reader.read();
  assert.match(Buffer.from(value).toString(), /working/);
  const wouldEnd = Date.now() + SLOW_MS;
  controller.abort();
  await rejection(reader.read());
  return wouldEnd;
}

async function within(ms, promise) {
  const started = Date.now();
  const value = await promise;
  const took = Date.now() - started;
  assert.ok(took < ms, `took ${took} ms`);
  return value;
}

test('a session is free soon after its client went away', async () => {
  const sessionId = newSessionId();
  await agent('echo').chat({ sessionId }).send('one');
  await leave({ sessionId });
  const next = await within(SOON_MS, agent('echo').chat({ sessionId }).send('two'));
  const stored = await agent('echo').getSnapshot(next.snapshotId);
  assert.deepEqual(stored.state.messages, echoed('one', 'two'));
  assert.deepEqual(stored.state.custom, { status: 'idle', turns: 2, last: 'two' });
});

beyondGenkit('nothing of a turn whose client went away can be gone on from, then or later', async () => {
  const sessionId = newSessionId();
  const { snapshotId } = await agent('echo').chat({ sessionId }).send('one');
  const wouldEnd = await leave({ snapshotId });
  const resumable = async () => {
    const latest = await agent('echo').getSnapshot({ sessionId });
    if (latest.status === 'completed') assert.equal(latest.snapshotId, snapshotId);
  };
  await until(
    'the turn would have ended',
    async () => {
      await resumable();
      return Date.now() > wouldEnd + 500;
    },
    SLOW_MS + 5_000
  );
  const next = await agent('echo').chat({ sessionId }).send('two');
  const stored = await agent('echo').getSnapshot(next.snapshotId);
  assert.deepEqual(stored.state.messages, echoed('one', 'two'));
  assert.equal(stored.parentId, snapshotId);
});

test('a client that goes away in its first turn leaves an id that is free', async () => {
  const sessionId = newSessionId();
  await leave({ sessionId });
  const next = await within(SOON_MS, agent('echo').chat({ sessionId }).send('one'));
  assert.equal(next.sessionId, sessionId);
  const stored = await agent('echo').getSnapshot(next.snapshotId);
  assert.deepEqual(stored.state.messages, echoed('one'));
});

test('a client that goes away without streaming has aborted too', async () => {
  const sessionId = newSessionId();
  await agent('echo').chat({ sessionId }).send('one');
  const controller = new AbortController();
  const gone = fetch(`${BASE}/echo`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(turnBody(SLOW, { sessionId })),
    signal: controller.signal,
  });
  // Nothing tells from outside that this turn runs. Leaving early or late, the outcome must be the same.
  setTimeout(() => controller.abort(), 300);
  await rejection(gone);
  const { body } = await within(SOON_MS, plainTurn('echo', turnBody('two', { sessionId })));
  const stored = await agent('echo').getSnapshot(body.result.snapshotId);
  assert.deepEqual(stored.state.messages, echoed('one', 'two'));
});

test('a chat whose turn was aborted by its own client goes on', async () => {
  const chat = agent('echo').chat();
  await chat.send('one');
  const turn = chat.sendStream(SLOW);
  for await (const _ of turn.stream) turn.abort();
  assert.equal((await turn.response).finishReason, 'aborted');
  assert.deepEqual(chat.messages, echoed('one'));
  await within(SOON_MS, chat.send('two'));
  assert.deepEqual(chat.messages, echoed('one', 'two'));
  const stored = await agent('echo').getSnapshot(chat.snapshotId);
  assert.deepEqual(stored.state.messages, echoed('one', 'two'));
});

test('the client sees its own abort as an aborted turn', async () => {
  const chat = agent('echo').chat();
  await chat.send('one');
  const turn = chat.sendStream('slow 500');
  for await (const _ of turn.stream) turn.abort();
  assert.equal((await turn.response).finishReason, 'aborted');
  assert.deepEqual(chat.messages, echoed('one'));
});
