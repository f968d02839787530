// Genkit's own, unmodified JS client against a server's `/genkit` routes.
//
// By hand, against any server that hosts the demo agents:
//
//     cargo run -p everturn-server -- serve --demo --addr 127.0.0.1:4100 --store memory:
//     cd crates/everturn-server/tests/genkit && npm install --omit=optional --no-package-lock
//     EVERTURN_URL=http://127.0.0.1:4100/genkit npm test
//     EVERTURN_URL=http://127.0.0.1:4100/genkit node --test failures.test.mjs      # one theme
//     EVERTURN_URL=http://127.0.0.1:4100/genkit node --test later_detach.mjs       # not in the default set
//
// `*.test.mjs` is the default set, which `node --test` finds by itself. `later_X.mjs` needs what later issues bring, and
// joins the set when it is renamed to `X.test.mjs`. `restart.mjs` needs a server that is killed in between.
// `tests/genkit_client.rs` runs the set on each store, and the restart.
//
// An ES module resolves a bare name from its own place, never from the working directory or NODE_PATH. So these files
// run from a folder with `node_modules` in it or above it: the Rust test copies them below the folder it installs into.
//
// A test whose name ends in "(beyond Genkit)" demands what Genkit's own server does not do. Against that server exactly
// those fail; against ours none may.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import nodeTest from 'node:test';

export { assert };
export { AgentError, applyPatch, runFlow } from 'genkit/beta/client';
import { remoteAgent } from 'genkit/beta/client';

export const BASE = process.env.EVERTURN_URL?.replace(/\/+$/, '');
if (!BASE) throw new Error('EVERTURN_URL is not set; try EVERTURN_URL=http://127.0.0.1:4100/genkit');

const REQUEST_DEADLINE_MS = 30_000;
const TEST_DEADLINE_MS = 45_000;

/** A test that is told by its name when it hangs, before the runner ends its whole file. */
export const test = (name, body) => nodeTest(name, { timeout: TEST_DEADLINE_MS }, body);

/** A test of something Genkit's own server gets wrong, and its client needs right. */
export const beyondGenkit = (name, body) => test(`${name} (beyond Genkit)`, body);

/** The real client's handle on a hosted agent. */
export const agent = (name) => remoteAgent({ url: `${BASE}/${name}` });

/** A session id nobody else uses. */
export const newSessionId = (label = 'session') => `${label}-${randomUUID()}`;

export const say = (role, text) => ({ role, content: [{ text }] });
export const user = (text) => say('user', text);
export const model = (text) => say('model', text);

/** The messages that plain turns with these texts leave behind. */
export const echoed = (...texts) => texts.flatMap((text) => [user(text), model(`echo: ${text}`)]);

/** The text of each message, to compare histories at a glance. */
export const textsOf = (messages) => messages.map((m) => m.content.map((part) => part.text ?? '').join(''));

/** The error a promise is rejected with; a promise that resolves fails the test. */
export async function rejection(promise) {
  const settled = await promise.then(
    (value) => ({ value }),
    (error) => ({ error })
  );
  assert.ok('error' in settled, `expected a rejection, got ${JSON.stringify(settled.value?.raw ?? settled.value)}`);
  return settled.error;
}

/** Asks until the answer is truthy. Bounded, for what only time can bring about. */
export async function until(what, ask, withinMs = 5_000) {
  const end = Date.now() + withinMs;
  for (;;) {
    const answer = await ask();
    if (answer) return answer;
    assert.ok(Date.now() < end, `not within ${withinMs} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** What a turn's request carries, as the client writes it. */
export const turnBody = (text, init = {}) => ({ data: { message: user(text) }, init });

/** A POST the client would not make. `body` is sent as it is when it is a string or bytes. */
export async function post(path, body, headers = {}) {
  const raw = typeof body === 'string' || body instanceof Uint8Array;
  const response = await plainFetch(`${BASE}/${path}`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json', ...headers },
    body: raw ? body : JSON.stringify(body),
    signal: AbortSignal.timeout(REQUEST_DEADLINE_MS),
  });
  return { status: response.status, headers: response.headers, bytes: Buffer.from(await response.arrayBuffer()) };
}

/** The JSON of an answer of `post`, which must say that it is JSON. */
export function jsonOf({ status, headers, bytes }) {
  const text = bytes.toString('utf8');
  assert.match(
    headers.get('content-type') ?? '',
    /^application\/json\b/,
    `${status} without JSON: ${text.slice(0, 200)}`
  );
  return JSON.parse(text);
}

/** A turn without streaming: the HTTP status and the body's JSON. */
export async function plainTurn(name, body) {
  const answer = await post(name, body, { Accept: '*/*' });
  return { status: answer.status, body: jsonOf(answer) };
}

/** Checks that an answer refuses with this HTTP code and status, at the top level, and says why. */
export function assertRefused({ status, body }, httpCode, code, why = /./) {
  assert.equal(status, httpCode, JSON.stringify(body).slice(0, 300));
  assert.equal(body.status, code);
  assert.equal(typeof body.message, 'string');
  assert.match(body.message, why);
}

/** A streamed turn read to the end of its stream, its framing checked: `{bytes, chunks, result, error}`. */
export async function streamedTurn(name, body) {
  const { status, bytes } = await post(name, body, { Accept: 'text/event-stream' });
  assert.equal(status, 200, bytes.toString('utf8').slice(0, 300));
  return { bytes, ...framesOf(bytes.toString('utf8')) };
}

/** Splits a stream as the client does, but refuses all that makes the client fail or spin. */
export function framesOf(text) {
  assert.ok(!text.includes('\r'), 'a carriage return in the stream: the client would spin for ever');
  assert.ok(text.endsWith('\n\n'), `the stream ends inside a frame: ${JSON.stringify(text.slice(-80))}`);
  const frames = text.slice(0, -2).split('\n\n').map(frameOf);
  const last = frames.pop();
  assert.ok('result' in last || 'error' in last, `the last frame is neither result nor error: ${JSON.stringify(last)}`);
  for (const frame of frames)
    assert.deepEqual(Object.keys(frame), ['message'], 'only chunks come before the last frame');
  return { chunks: frames.map((frame) => frame.message), ...last };
}

function frameOf(line) {
  // An error may be announced as `error: `: the client cuts off six characters whatever they are.
  const [, name, json] = /^(data|error): (.*)$/s.exec(line) ?? [];
  assert.ok(json, `not a frame: ${JSON.stringify(line.slice(0, 80))}`);
  assert.ok(!json.includes('\n'), 'a line feed inside a frame');
  const frame = JSON.parse(json);
  assert.equal(Object.keys(frame).length, 1, `one of message, result and error: ${Object.keys(frame)}`);
  if (name === 'error') assert.ok('error' in frame, 'only an error is announced as one');
  return frame;
}

/** The patches of custom state in a stream. */
export const patchesOf = (chunks) => chunks.filter((c) => c.customPatch).map((c) => c.customPatch);

/** The parents of a snapshot, nearest first, the snapshot itself included. */
export async function chainOf(handle, snapshotId) {
  const chain = [];
  for (let id = snapshotId; id; id = chain.at(-1).parentId) {
    assert.ok(chain.length < 1_000, 'a chain without an end');
    chain.push(await handle.getSnapshot(id));
  }
  return chain;
}

// The client never looks whether a stream has ended: one without a result makes it spin in microtasks, so that no timer
// of the test runs any more. Turning that end into an error makes such a server a failed test that says what is wrong.
const plainFetch = globalThis.fetch;
globalThis.fetch = async (url, init) => {
  const response = await plainFetch(url, init);
  const streams = init?.headers?.Accept === 'text/event-stream' && response.status === 200 && response.body;
  if (!streams) return response;
  let tail = '';
  const guard = new TransformStream({
    transform(bytes, controller) {
      tail = (tail + Buffer.from(bytes).toString('latin1')).slice(-2);
      controller.enqueue(bytes);
    },
    flush(controller) {
      // The client stops reading at a result or an error, so whoever gets here saw neither.
      controller.error(new Error(`the stream ended without a result or an error, after ${JSON.stringify(tail)}`));
    },
  });
  return new Response(response.body.pipeThrough(guard), { status: response.status, headers: response.headers });
};
