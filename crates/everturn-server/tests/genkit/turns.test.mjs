// Turns of a server-managed agent, as a program that uses the client sees them.

import {
  agent,
  assert,
  BASE,
  echoed,
  model,
  newSessionId,
  plainTurn,
  runFlow,
  streamedTurn,
  test,
  turnBody,
  user,
} from './support.mjs';

test('a single turn answers', async () => {
  const chat = agent('echo').chat();
  const response = await chat.send('hi');
  assert.equal(response.text, 'echo: hi');
  assert.equal(response.finishReason, 'stop');
  assert.deepEqual(response.message, model('echo: hi'));
  assert.deepEqual(response.artifacts, []);
  assert.deepEqual(response.interrupts, []);
  assert.deepEqual(response.state, { status: 'idle', turns: 1, last: 'hi' });
});

test('a chat knows its session, its snapshot, its messages and its state', async () => {
  const chat = agent('echo').chat();
  const response = await chat.send('hi');
  assert.ok(chat.sessionId);
  assert.ok(chat.snapshotId);
  assert.equal(response.sessionId, chat.sessionId);
  assert.equal(response.snapshotId, chat.snapshotId);
  assert.deepEqual(chat.messages, echoed('hi'));
  assert.deepEqual(chat.state, { status: 'idle', turns: 1, last: 'hi' });
});

test('each turn of a chat goes on where the one before ended', async () => {
  const chat = agent('echo').chat();
  const seen = new Set();
  for (const [index, text] of ['one', 'two', 'three'].entries()) {
    const response = await chat.send(text);
    assert.equal(response.text, `echo: ${text}`);
    assert.deepEqual(response.state, { status: 'idle', turns: index + 1, last: text });
    seen.add(response.snapshotId);
  }
  assert.equal(seen.size, 3, 'a new snapshot for each turn');
  assert.deepEqual(chat.messages, echoed('one', 'two', 'three'));
  const stored = await agent('echo').getSnapshot(chat.snapshotId);
  assert.deepEqual(stored.state.messages, chat.messages);
});

test('a session keeps its id from turn to turn', async () => {
  const chat = agent('echo').chat();
  const first = (await chat.send('one')).sessionId;
  const second = (await chat.send('two')).sessionId;
  assert.equal(second, first);
});

test('two chats without an id are two sessions', async () => {
  const [a, b] = [agent('echo').chat(), agent('echo').chat()];
  await a.send('one');
  await b.send('two');
  assert.notEqual(a.sessionId, b.sessionId);
  assert.deepEqual(b.state, { status: 'idle', turns: 1, last: 'two' });
});

test('a session id nobody used yet starts a session under that id', async () => {
  const sessionId = newSessionId();
  const chat = agent('echo').chat({ sessionId });
  const response = await chat.send('hi');
  assert.equal(response.sessionId, sessionId);
  assert.equal(chat.state.turns, 1);
});

test('a session id in use goes on with its newest turn', async () => {
  const sessionId = newSessionId();
  await agent('echo').chat({ sessionId }).send('one');
  const chat = agent('echo').chat({ sessionId });
  await chat.send('two');
  assert.equal(chat.state.turns, 2);
  const stored = await agent('echo').getSnapshot(chat.snapshotId);
  assert.deepEqual(stored.state.messages, echoed('one', 'two'));
});

test('any text that is not blank is a session id', async () => {
  const odd = ['../../etc/passwd', 'a/b?c#d', "Robert'); DROP TABLE sessions;--", 'ünï 🙂', ' spaced ', '%00', '.'];
  for (const start of odd) {
    const sessionId = `${start}${newSessionId('')}`;
    await agent('echo').chat({ sessionId }).send('one');
    const second = await agent('echo').chat({ sessionId }).send('two');
    assert.equal(second.sessionId, sessionId);
    assert.equal(second.state.turns, 2, sessionId);
    const stored = await agent('echo').getSnapshot({ sessionId });
    assert.equal(stored.snapshotId, second.snapshotId);
  }
});

test('one session id under two agents is two sessions', async () => {
  const sessionId = newSessionId();
  await agent('echo').chat({ sessionId }).send('mine');
  await agent('redact').chat({ sessionId }).send('yours');
  const echo = await agent('echo').getSnapshot({ sessionId });
  const redact = await agent('redact').getSnapshot({ sessionId });
  assert.deepEqual(echo.state.messages, echoed('mine'));
  assert.deepEqual(redact.state.messages, [user('yours'), model('ok')]);
});

test('the parts of a message are one text, and are kept as they came', async () => {
  const message = {
    role: 'user',
    content: [
      { text: 'look ' },
      { media: { url: 'data:image/png;base64,iVBORw0KGgo=', contentType: 'image/png' } },
      { text: 'here', metadata: { lang: 'en' } },
      { data: { nested: [1, null, { deep: true }] } },
    ],
    metadata: { from: 'test', n: 1 },
  };
  const chat = agent('echo').chat();
  const response = await chat.send({ message });
  assert.equal(response.text, 'echo: look here');
  const stored = await agent('echo').getSnapshot(chat.snapshotId);
  assert.deepEqual(stored.state.messages, [message, model('echo: look here')]);
});

test('an empty text is a turn like any other', async () => {
  const chat = agent('echo').chat();
  const response = await chat.send('');
  assert.equal(response.text, 'echo: ');
  assert.deepEqual(chat.state, { status: 'idle', turns: 1, last: '' });
});

test('a result names session and snapshot, and carries no state', async () => {
  const { result } = await streamedTurn('echo', turnBody('hi'));
  const { sessionId, snapshotId, ...rest } = result;
  assert.ok(sessionId && snapshotId);
  assert.deepEqual(rest, { message: model('echo: hi'), finishReason: 'stop' });
});

test('a turn without streaming answers with the same result', async () => {
  const { status, body } = await plainTurn('echo', turnBody('hi'));
  assert.equal(status, 200);
  assert.deepEqual(Object.keys(body), ['result']);
  const { sessionId, snapshotId, ...rest } = body.result;
  assert.ok(sessionId && snapshotId);
  assert.deepEqual(rest, { message: model('echo: hi'), finishReason: 'stop' });

  const url = `${BASE}/echo`;
  const next = await runFlow({ url, input: { message: user('two') }, init: { snapshotId } });
  assert.equal(next.sessionId, sessionId);
  assert.deepEqual(next.message, model('echo: two'));
  const stored = await agent('echo').getSnapshot(next.snapshotId);
  assert.deepEqual(stored.state.messages, echoed('hi', 'two'));
});
