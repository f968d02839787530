// An agent without a store: the whole state goes to the client and comes back with its next turn.

import {
  agent,
  AgentError,
  assert,
  beyondGenkit,
  echoed,
  model,
  plainTurn,
  rejection,
  streamedTurn,
  test,
  turnBody,
  user,
} from './support.mjs';

test('the state makes the round trip, turn after turn', async () => {
  const chat = agent('echoClient').chat();
  for (const [index, text] of ['one', 'two', 'three'].entries()) {
    const response = await chat.send(text);
    assert.equal(response.text, `echo: ${text}`);
    assert.deepEqual(response.state, { status: 'idle', turns: index + 1, last: text });
    assert.equal(chat.snapshotId, undefined);
  }
  assert.deepEqual(chat.messages, echoed('one', 'two', 'three'));
  assert.deepEqual(chat.state, { status: 'idle', turns: 3, last: 'three' });
});

test('a session without a store keeps its id from turn to turn', async () => {
  const chat = agent('echoClient').chat();
  const first = (await chat.send('one')).sessionId;
  assert.ok(first);
  assert.equal((await chat.send('two')).sessionId, first);
});

test('a result carries the whole state and no snapshot id, nor does the end of the turn', async () => {
  const { chunks, result } = await streamedTurn('echoClient', turnBody('hi'));
  assert.deepEqual(Object.keys(result).sort(), ['finishReason', 'message', 'sessionId', 'state']);
  assert.deepEqual(result.message, model('echo: hi'));
  assert.equal(result.finishReason, 'stop');
  const { artifacts, ...state } = result.state;
  assert.deepEqual(artifacts ?? [], []);
  assert.deepEqual(state, {
    sessionId: result.sessionId,
    messages: echoed('hi'),
    custom: { status: 'idle', turns: 1, last: 'hi' },
  });
  assert.deepEqual(chunks.at(-1), { turnEnd: { finishReason: 'stop' } });
});

test('a new chat goes on from a state that was kept', async () => {
  const { result } = await streamedTurn('echoClient', turnBody('one'));
  const chat = agent('echoClient').chat({ state: result.state });
  assert.deepEqual(chat.messages, echoed('one'));
  const response = await chat.send('two');
  assert.equal(response.sessionId, result.sessionId);
  assert.deepEqual(chat.messages, echoed('one', 'two'));
  assert.equal(chat.state.turns, 2);
});

test('an older state that was kept is a second line', async () => {
  const first = (await streamedTurn('echoClient', turnBody('one'))).result.state;
  const main = await streamedTurn('echoClient', turnBody('two', { state: first }));
  const side = await streamedTurn('echoClient', turnBody('other', { state: first }));
  assert.deepEqual(main.result.state.messages, echoed('one', 'two'));
  assert.deepEqual(side.result.state.messages, echoed('one', 'other'));
});

test('a state may come without a session id, and gets one', async () => {
  const { result } = await streamedTurn('echoClient', turnBody('two', { state: { messages: echoed('one') } }));
  assert.ok(result.sessionId);
  assert.equal(result.state.sessionId, result.sessionId);
  assert.equal(result.state.custom.turns, 2);
});

test('a turn without streaming carries the state as well', async () => {
  const { status, body } = await plainTurn('echoClient', turnBody('hi'));
  assert.equal(status, 200);
  assert.deepEqual(body.result.state.messages, echoed('hi'));
  assert.ok(!('snapshotId' in body.result));
});

test('members of the custom state that the schema does not name are kept', async () => {
  const custom = { turns: 7, mine: { deep: [1, null, 'x'] }, none: null, flag: false };
  const chat = agent('echoClient').chat({ state: { custom, messages: [], artifacts: [] } });
  await chat.send('hi');
  assert.deepEqual(chat.state, { ...custom, status: 'idle', turns: 1, last: 'hi' });
});

test('custom state that breaks the schema fails the turn, and the state comes back as it was', async () => {
  for (const custom of [{ turns: 'many' }, { last: 5 }, { status: {} }, 'a string', [1]]) {
    const state = { custom, messages: echoed('one') };
    const { chunks, result } = await streamedTurn('echoClient', turnBody('hi', { state }));
    assert.deepEqual(chunks, []);
    assert.equal(result.finishReason, 'failed');
    assert.equal(result.error.status, 'INVALID_ARGUMENT');
    assert.ok(!('sessionId' in result));
    assert.deepEqual(result.state, state);
    const error = await rejection(agent('echoClient').chat({ state }).send('hi'));
    assert.ok(error instanceof AgentError);
    assert.equal(error.status, 'INVALID_ARGUMENT');
  }
});

test('a failed turn gives the state before it back', async () => {
  const before = (await streamedTurn('echoClient', turnBody('good'))).result.state;
  const { chunks, result } = await streamedTurn('echoClient', turnBody('fail broken', { state: before }));
  assert.deepEqual(chunks.at(-1), { turnEnd: { finishReason: 'failed' } });
  assert.equal(result.finishReason, 'failed');
  assert.deepEqual(result.error, { status: 'UNAVAILABLE', message: 'broken', details: { hint: 'demo' } });
  assert.deepEqual(result.state, before);
  assert.equal(result.sessionId, before.sessionId);
  assert.ok(!('snapshotId' in result));
});

// The patches of the failed turn and the state of its result race in the client; only a patch back makes both agree.
beyondGenkit('a failed turn leaves no poison in a chat, which goes on', async () => {
  const chat = agent('echoClient').chat();
  await chat.send('good');
  await rejection(chat.send('fail broken'));
  assert.deepEqual(chat.messages, echoed('good'));
  assert.deepEqual(chat.state, { status: 'idle', turns: 1, last: 'good' });
  await chat.send('again');
  assert.deepEqual(chat.messages, echoed('good', 'again'));
  assert.deepEqual(chat.state, { status: 'idle', turns: 2, last: 'again' });
});

beyondGenkit('a first turn that fails leaves a chat that works', async () => {
  const chat = agent('echoClient').chat();
  await rejection(chat.send('fail broken'));
  assert.deepEqual(chat.messages, []);
  assert.equal(chat.state, undefined);
  await chat.send('again');
  assert.deepEqual(chat.messages, [user('again'), model('echo: again')]);
  assert.deepEqual(chat.state, { status: 'idle', turns: 1, last: 'again' });
});
