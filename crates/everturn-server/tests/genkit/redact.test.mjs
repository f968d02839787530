// What an agent hides from clients is hidden everywhere: in patches, in snapshots, in what a chat is loaded from.

import { agent, assert, model, patchesOf, plainTurn, post, streamedTurn, test, turnBody, user } from './support.mjs';

const SECRETS = /s3cr3t|secret|INTERNAL/;

test('no byte of a stream tells the secret or an internal note', async () => {
  let init = {};
  for (const seen of [1, 2, 3]) {
    const { bytes, chunks, result } = await streamedTurn('redact', turnBody(`turn ${seen}`, init));
    assert.doesNotMatch(bytes.toString('utf8'), SECRETS);
    assert.deepEqual(chunks, [
      { customPatch: [{ op: 'replace', path: '', value: { seen } }] },
      { modelChunk: model('ok') },
      { turnEnd: { snapshotId: result.snapshotId, finishReason: 'stop' } },
    ]);
    assert.deepEqual(patchesOf(chunks).length, 1);
    init = { snapshotId: result.snapshotId };
  }
});

test('no byte of a snapshot tells the secret, by id or by session', async () => {
  const chat = agent('redact').chat();
  await chat.send('one');
  await chat.send('two');
  for (const data of [{ snapshotId: chat.snapshotId }, { sessionId: chat.sessionId }]) {
    const { status, bytes } = await post('redact/getSnapshot', { data });
    assert.equal(status, 200);
    assert.doesNotMatch(bytes.toString('utf8'), SECRETS);
    const { state } = JSON.parse(bytes.toString('utf8')).result;
    assert.deepEqual(state.custom, { seen: 2 });
    assert.deepEqual(state.messages, [user('one'), model('ok'), user('two'), model('ok')]);
  }
});

test('no byte of a turn without streaming tells the secret', async () => {
  const { status, body } = await plainTurn('redact', turnBody('hi'));
  assert.equal(status, 200);
  assert.doesNotMatch(JSON.stringify(body), SECRETS);
});

test('what is shown of the state goes on counting', async () => {
  const chat = agent('redact').chat();
  for (const seen of [1, 2, 3]) {
    const turn = chat.sendStream('hi');
    const texts = [];
    for await (const chunk of turn.stream) if (chunk.text) texts.push(chunk.text);
    const response = await turn.response;
    assert.deepEqual(texts, ['ok']);
    assert.equal(response.text, 'ok');
    assert.deepEqual(chat.state, { seen });
  }
});

test('a loaded chat sees the shown state and goes on with the whole one', async () => {
  const first = agent('redact').chat();
  await first.send('one');
  const loaded = await agent('redact').loadChat({ sessionId: first.sessionId });
  assert.deepEqual(loaded.state, { seen: 1 });
  assert.deepEqual(loaded.messages, [user('one'), model('ok')]);
  await loaded.send('two');
  assert.deepEqual(loaded.state, { seen: 2 });
});
