// Requests the client never makes. Each is answered by a 4xx with a JSON body that says what is wrong with it.

import { request } from 'node:http';

import {
  agent,
  AgentError,
  assert,
  assertRefused,
  BASE,
  beyondGenkit,
  jsonOf,
  newSessionId,
  plainTurn,
  post,
  rejection,
  streamedTurn,
  test,
  turnBody,
  user,
} from './support.mjs';

const refuse = async (path, body, httpCode, code, why) => {
  const answer = await post(path, body);
  assertRefused({ status: answer.status, body: jsonOf(answer) }, httpCode, code, why);
};

for (const [what, body] of Object.entries({
  'a body cut short': '{"data":{"message":{"role":"user","content":[{"text":"x"',
  'a body that is no JSON at all': 'data=hello',
  'a body with something after it': '{"data":{},"init":{}} trailing',
})) {
  // Genkit's own server answers with a page of HTML and a stack trace.
  beyondGenkit(`${what} is refused in JSON`, async () => {
    for (const path of ['echo', 'echoClient', 'echo/getSnapshot'])
      await refuse(path, body, 400, 'INVALID_ARGUMENT', /JSON/i);
  });
}

const message = (more) => ({ data: { message: { ...user('x'), ...more } }, init: {} });
const withInit = (init) => ({ data: { message: user('x') }, init });

for (const [what, body, why] of [
  ['an empty body', '', /./],
  ['a body that is a list', [], /./],
  ['a body with its members in a list', [{ message: user('x') }], /object/],
  ['a body without data', { init: {} }, /./],
  ['data that is a text', { data: 'hi', init: {} }, /./],
  ['a message that is a text', { data: { message: 'hi' }, init: {} }, /message/],
  ['a message that is a list', { data: { message: [user('x')] }, init: {} }, /message/],
  ['a message that is null', { data: { message: null }, init: {} }, /message/],
  ['a role nobody has', message({ role: 'alien' }), /role/],
  ['a role that is a number', message({ role: 1 }), /role/],
  ['a message without a role', { data: { message: { content: [] } }, init: {} }, /role/],
  ['a message without content', { data: { message: { role: 'user' } }, init: {} }, /content/],
  ['content that is a text', message({ content: 'x' }), /content/],
  ['a part that is a text', message({ content: ['x'] }), /content/],
  ['a text that is a number', message({ content: [{ text: 5 }] }), /content/],
  ['message metadata that is a text', message({ metadata: 'x' }), /metadata/],
  ['detach that is a text', { data: { message: user('x'), detach: 'yes' }, init: {} }, /detach/],
  ['resume that is a text', { data: { resume: 'now' }, init: {} }, /resume/],
  ['init that is a text', withInit('latest'), /./],
  ['a snapshot id that is a number', withInit({ snapshotId: 5 }), /snapshotId/],
  ['a session id that is a number', withInit({ sessionId: 5 }), /sessionId/],
  ['a state that is a text', withInit({ state: 'x' }), /state/],
  ['a state whose messages are no list', withInit({ state: { messages: {} } }), /messages/],
]) {
  test(`${what} is an invalid argument`, async () => {
    for (const name of ['echo', 'echoClient']) await refuse(name, body, 400, 'INVALID_ARGUMENT', why);
  });
}

for (const [what, data] of Object.entries({
  'a look-up without data': undefined,
  'a look-up by a number': { snapshotId: 5 },
  'a look-up by a list': { sessionId: ['x'] },
})) {
  test(`${what} is an invalid argument`, async () => refuse('echo/getSnapshot', { data }, 400, 'INVALID_ARGUMENT'));
}

test('the client learns the status of a malformed message', async () => {
  for (const bad of [{ role: 'alien', content: [] }, 'hi', { role: 'user', content: 'x' }]) {
    const error = await rejection(agent('echo').chat().send({ message: bad }));
    assert.ok(error instanceof AgentError);
    assert.equal(error.status, 'INVALID_ARGUMENT', error.message.slice(0, 200));
  }
});

test('a malformed message leaves nothing behind', async () => {
  const sessionId = newSessionId();
  await refuse('echo', { ...message({ role: 'alien' }), init: { sessionId } }, 400, 'INVALID_ARGUMENT', /role/);
  await refuse('echo/getSnapshot', { data: { sessionId } }, 404, 'NOT_FOUND');
  const { result } = await streamedTurn('echo', turnBody('hi', { sessionId }));
  assert.equal(result.sessionId, sessionId);
});

test('an agent nobody hosts is a 404, streaming or not', async () => {
  for (const path of ['nobody', 'nobody/getSnapshot', 'echo/nothing', 'echo%2Fabort', '..%2Fecho']) {
    for (const Accept of ['*/*', 'text/event-stream']) {
      const { status } = await post(path, turnBody('hi'), { Accept });
      assert.equal(status, 404, path);
    }
  }
  const error = await rejection(agent('nobody').chat().send('hi'));
  assert.match(error.message, /^Server returned: 404: /);
});

beyondGenkit('an agent nobody hosts is named in JSON', async () => {
  await refuse('nobody', turnBody('hi'), 404, 'NOT_FOUND', /nobody/);
  await refuse('nobody/getSnapshot', { data: { snapshotId: 'x' } }, 404, 'NOT_FOUND', /nobody/);
});

test('a turn is a POST', async () => {
  const { status } = await fetch(`${BASE}/echo`);
  assert.ok([404, 405].includes(status), `${status}`);
});

test('bytes that are not UTF-8 are no reason to fall over', async () => {
  const body = Buffer.concat([
    Buffer.from('{"data":{"message":{"role":"user","content":[{"text":"'),
    Buffer.from([0xff, 0xfe]),
    Buffer.from('"}]}},"init":{}}'),
  ]);
  const { status } = await post('echo', body);
  assert.ok([200, 400].includes(status), `${status}`);
});

test('a body nested too deep is no reason to fall over', async () => {
  const deep = '['.repeat(50_000) + ']'.repeat(50_000);
  await post(
    'echo',
    `{"data":{"message":{"role":"user","content":[{"text":"x","metadata":{"deep":${deep}}}]}},"init":{}}`
  );
  const { status } = await plainTurn('echo', turnBody('still here'));
  assert.equal(status, 200);
});

/** Announces a body of a gibibyte and sends of it what the server asks for, up to a bound. */
async function postTooMuch(url) {
  const headers = { 'Content-Type': 'application/json', 'Content-Length': 2 ** 30, Expect: '100-continue' };
  const outgoing = request(url, { method: 'POST', headers });
  try {
    return await new Promise((resolve, reject) => {
      const piece = Buffer.alloc(2 ** 16, ' ');
      let left = 2 ** 28 / piece.length;
      let answered = false;
      const pump = () => {
        if (answered) return;
        if (left-- > 0) outgoing.write(piece, () => setImmediate(pump));
        else reject(new Error('256 MiB were taken without a word'));
      };
      outgoing.on('continue', pump);
      outgoing.setTimeout(10_000, () => reject(new Error('ten seconds of silence')));
      // After an answer this changes nothing any more: a server may close under the rest of the body.
      outgoing.on('error', reject);
      outgoing.on('response', async (response) => {
        answered = true;
        const bytes = Buffer.concat(await response.toArray());
        resolve({ status: response.statusCode, headers: new Headers(response.headers), bytes });
      });
    });
  } finally {
    outgoing.destroy();
  }
}

beyondGenkit('a body that is too large is refused in JSON, before it is all read', async () => {
  const answer = await postTooMuch(`${BASE}/echo`);
  assert.equal(answer.status, 413);
  const body = jsonOf(answer);
  assert.match(body.status, /^(INVALID_ARGUMENT|RESOURCE_EXHAUSTED|OUT_OF_RANGE|FAILED_PRECONDITION)$/);
  assert.match(body.message, /large|limit|bytes|size/i);
});
