// Reading snapshots: what is in them, how they are found, and chats that start from them.

import {
  agent,
  assert,
  assertRefused,
  chainOf,
  echoed,
  jsonOf,
  newSessionId,
  post,
  rejection,
  test,
} from './support.mjs';

const ISO = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$/;

async function getSnapshot(name, data) {
  const answer = await post(`${name}/getSnapshot`, { data });
  return { status: answer.status, body: jsonOf(answer) };
}

test('a snapshot has the shape Genkit gives it', async () => {
  const chat = agent('echo').chat();
  await chat.send('one');
  await chat.send('two');
  const snapshot = await agent('echo').getSnapshot(chat.snapshotId);
  const expected = ['createdAt', 'finishReason', 'parentId', 'sessionId', 'snapshotId', 'state', 'status', 'updatedAt'];
  assert.deepEqual(Object.keys(snapshot).sort(), expected);
  assert.equal(snapshot.snapshotId, chat.snapshotId);
  assert.equal(snapshot.sessionId, chat.sessionId);
  assert.equal(snapshot.status, 'completed');
  assert.equal(snapshot.finishReason, 'stop');
  const { artifacts, ...state } = snapshot.state;
  assert.deepEqual(artifacts ?? [], []);
  assert.deepEqual(state, {
    sessionId: chat.sessionId,
    messages: echoed('one', 'two'),
    custom: { status: 'idle', turns: 2, last: 'two' },
  });
});

test('the first snapshot of a session has no parent, each other one has the one before', async () => {
  const chat = agent('echo').chat();
  const ids = [];
  for (const text of ['one', 'two', 'three']) ids.unshift((await chat.send(text)).snapshotId);
  const chain = await chainOf(agent('echo'), chat.snapshotId);
  assert.deepEqual(
    chain.map((s) => s.snapshotId),
    ids
  );
  assert.ok(!('parentId' in chain.at(-1)));
});

test('times are ISO 8601 in UTC, and true', async () => {
  const before = Date.now();
  const chat = agent('echo').chat();
  await chat.send('one');
  await chat.send('two');
  const after = Date.now();
  const [second, first] = await chainOf(agent('echo'), chat.snapshotId);
  for (const time of [first.createdAt, first.updatedAt, second.createdAt, second.updatedAt]) {
    assert.match(time, ISO);
    assert.ok(Date.parse(time) >= before - 1 && Date.parse(time) <= after + 1, time);
  }
  assert.ok(Date.parse(first.createdAt) <= Date.parse(second.createdAt));
  assert.ok(Date.parse(second.createdAt) <= Date.parse(second.updatedAt));
});

test('an older snapshot stays what it was', async () => {
  const chat = agent('echo').chat();
  const first = (await chat.send('one')).snapshotId;
  const asItWas = await agent('echo').getSnapshot(first);
  await chat.send('two');
  assert.deepEqual(await agent('echo').getSnapshot(first), asItWas);
  assert.deepEqual(asItWas.state.messages, echoed('one'));
});

test('a session is found by its id, at its newest turn', async () => {
  const chat = agent('echo').chat();
  for (const text of ['one', 'two']) {
    await chat.send(text);
    const bySession = await agent('echo').getSnapshot({ sessionId: chat.sessionId });
    assert.deepEqual(bySession, await agent('echo').getSnapshot({ snapshotId: chat.snapshotId }));
  }
});

test('a chat is loaded from a snapshot and goes on from there', async () => {
  const chat = agent('echo').chat();
  await chat.send('artifact a.md body');
  const { snapshotId } = await chat.send('two');
  await chat.send('three');

  const loaded = await agent('echo').loadChat({ snapshotId });
  assert.equal(loaded.snapshotId, snapshotId);
  assert.equal(loaded.sessionId, chat.sessionId);
  assert.deepEqual(loaded.messages, chat.messages.slice(0, 4));
  assert.deepEqual(loaded.state, { status: 'idle', turns: 2, last: 'two' });
  assert.deepEqual(loaded.artifacts, chat.artifacts);

  await loaded.send('instead');
  assert.deepEqual(loaded.state, { status: 'idle', turns: 3, last: 'instead' });
  assert.equal(loaded.messages.length, 6);
  assert.deepEqual((await agent('echo').getSnapshot(loaded.snapshotId)).state.messages, loaded.messages);
});

test('a chat is loaded from a session and goes on with its newest turn', async () => {
  const chat = agent('echo').chat();
  await chat.send('one');
  await chat.send('two');
  const loaded = await agent('echo').loadChat({ sessionId: chat.sessionId });
  assert.equal(loaded.snapshotId, chat.snapshotId);
  assert.deepEqual(loaded.messages, echoed('one', 'two'));
  const response = await loaded.send('three');
  assert.equal(response.sessionId, chat.sessionId);
  assert.deepEqual(loaded.messages, echoed('one', 'two', 'three'));
  assert.equal(loaded.state.turns, 3);
});

test('a snapshot or session that is not there is not found', async () => {
  for (const lookup of [{ snapshotId: newSessionId('nope') }, { sessionId: newSessionId('nope') }]) {
    const [id] = Object.values(lookup);
    assertRefused(await getSnapshot('echo', lookup), 404, 'NOT_FOUND', new RegExp(id));
    assert.match((await rejection(agent('echo').getSnapshot(lookup))).message, /^Server returned: 404: /);
    assert.match((await rejection(agent('echo').loadChat(lookup))).message, /^Server returned: 404: /);
  }
});

test('the snapshot of another agent is not found', async () => {
  const chat = agent('redact').chat();
  await chat.send('hi');
  for (const lookup of [{ snapshotId: chat.snapshotId }, { sessionId: chat.sessionId }]) {
    assertRefused(await getSnapshot('echo', lookup), 404, 'NOT_FOUND');
  }
});

test('a look-up names a snapshot or a session, not both and not neither', async () => {
  const chat = agent('echo').chat();
  await chat.send('hi');
  const both = { snapshotId: chat.snapshotId, sessionId: chat.sessionId };
  assertRefused(await getSnapshot('echo', both), 400, 'INVALID_ARGUMENT', /snapshotId.*sessionId/s);
  assertRefused(await getSnapshot('echo', {}), 400, 'INVALID_ARGUMENT', /snapshotId.*sessionId/s);
});

test('a client-managed agent has no snapshots to read', async () => {
  for (const data of [{ snapshotId: 'any' }, { sessionId: 'any' }]) {
    assertRefused(await getSnapshot('echoClient', data), 400, 'FAILED_PRECONDITION', /store/);
  }
});
