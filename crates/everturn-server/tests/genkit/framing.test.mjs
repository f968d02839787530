// The bytes of a stream. The client cuts six characters off each frame, splits at two line feeds and looks at nothing
// else, so whatever is not exactly that makes it fail or spin for ever. `framesOf` checks the form of every stream.

import { assert, beyondGenkit, model, newSessionId, plainTurn, streamedTurn, test, turnBody } from './support.mjs';

const KINDS = ['modelChunk', 'customPatch', 'artifact', 'turnEnd'];

function assertChunks(chunks) {
  for (const chunk of chunks) {
    const keys = Object.keys(chunk);
    assert.equal(keys.length, 1, `one field per chunk: ${keys}`);
    assert.ok(KINDS.includes(keys[0]), `the client knows no ${keys[0]}`);
  }
  assert.deepEqual(chunks.map((c) => 'turnEnd' in c).lastIndexOf(true), chunks.length - 1, 'turnEnd is last');
  assert.equal(chunks.filter((c) => c.turnEnd).length, 1, 'one turnEnd');
}

test('the stream of a plain turn is the one that was captured from Genkit', async () => {
  const { bytes, chunks, result } = await streamedTurn('echo', turnBody('hi'));
  const { sessionId, snapshotId } = result;
  const [working, hello, text, idle, end, ...more] = chunks;
  assert.deepEqual(more, []);
  assert.deepEqual(working, { customPatch: [{ op: 'replace', path: '', value: { status: 'working' } }] });
  assert.deepEqual(hello, { modelChunk: model('echo: ') });
  assert.deepEqual(text, { modelChunk: model('hi') });
  assert.deepEqual(
    new Set(idle.customPatch.map((op) => JSON.stringify([op.op, op.path, op.value]))),
    new Set(['["replace","/status","idle"]', '["add","/turns",1]', '["add","/last","hi"]'])
  );
  assert.deepEqual(end, { turnEnd: { snapshotId, finishReason: 'stop' } });
  assert.deepEqual(result, { sessionId, message: model('echo: hi'), finishReason: 'stop', snapshotId });
  assert.ok(
    bytes
      .toString('latin1')
      .split('\n\n')
      .slice(0, -1)
      .every((frame) => frame.startsWith('data: {'))
  );
});

for (const [name, text] of [
  ['echo', 'plain'],
  ['echo', 'artifact doc.md body of it'],
  ['echo', 'fail on purpose'],
  ['echo', 'slow 60'],
  ['echo', 'two\n\nparagraphs\r\n\r\nand data: {"result":{}}\n\n'],
  ['echoClient', 'plain'],
  ['echoClient', 'artifact doc.md body of it'],
  ['echoClient', 'fail on purpose'],
  ['redact', 'plain'],
]) {
  test(`the stream of ${name} is well formed for ${JSON.stringify(text)}`, async () => {
    const { chunks, result } = await streamedTurn(name, turnBody(text));
    assertChunks(chunks);
    const finishReason = text.startsWith('fail') ? 'failed' : 'stop';
    assert.equal(chunks.at(-1).turnEnd.finishReason, finishReason);
    assert.equal(result.finishReason, finishReason);
  });
}

test('a refused start is one error frame, under HTTP 200', async () => {
  const { chunks, error } = await streamedTurn('echo', turnBody('hi', { state: { custom: {} } }));
  assert.deepEqual(chunks, []);
  assert.equal(error.status, 'FAILED_PRECONDITION');
  assert.equal(typeof error.message, 'string');
});

test('a start from a snapshot that is not there is one result frame', async () => {
  const { chunks, result } = await streamedTurn('echo', turnBody('hi', { snapshotId: newSessionId('nope') }));
  assert.deepEqual(chunks, []);
  assert.equal(result.finishReason, 'failed');
});

test('only who asks for a stream gets one', async () => {
  const { status, body } = await plainTurn('echo', turnBody('hi'));
  assert.equal(status, 200);
  assert.deepEqual(body.result.message, model('echo: hi'));
});

// The client decodes each read by itself: a character whose bytes come in two reads is lost.
beyondGenkit('frames are ASCII, whatever is said in them', async () => {
  for (const name of ['echo', 'echoClient']) {
    const text = 'é 漢字 🙂 \u2028 \u007f';
    const turns = [text, `artifact ${text.replaceAll(' ', '')} ${text}`, `fail ${text}`];
    for (const turn of turns) {
      const { bytes, result } = await streamedTurn(name, turnBody(turn));
      assert.ok(
        bytes.every((byte) => byte < 0x80),
        `${name}: ${turn}`
      );
      if (turn === text) assert.equal(result.message.content[0].text, `echo: ${text}`);
    }
  }
});

beyondGenkit('error frames are ASCII too', async () => {
  const init = { snapshotId: '漢字🙂' };
  const graceful = await streamedTurn('echo', turnBody('hi', init));
  assert.ok(graceful.bytes.every((byte) => byte < 0x80));
  assert.match(graceful.result.error.message, /漢字🙂/);
  const known = (await streamedTurn('echo', turnBody('hi'))).result;
  const mismatch = await streamedTurn('echo', turnBody('hi', { snapshotId: known.snapshotId, sessionId: 'ünï🙂' }));
  assert.ok(mismatch.bytes.every((byte) => byte < 0x80));
  assert.match(mismatch.error.message, /ünï🙂/);
});
