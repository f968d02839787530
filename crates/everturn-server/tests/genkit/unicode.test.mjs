// Every text survives, however odd or large.

import { agent, assert, beyondGenkit, echoed, plainTurn, streamedTurn, test, turnBody } from './support.mjs';

const TEXTS = {
  'accents and combining marks': 'é e\u0301 ñ Å A\u030a',
  'scripts of the world': 'Ελληνικά русский עברית العربية हिन्दी ไทย 漢字 かな 한국어',
  'emoji, joined and flagged': '🙂 👩‍👩‍👧‍👦 🏳️‍🌈 🇺🇳 👍🏽',
  'characters beyond the first plane': '𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𠜎 \u{10ffff}',
  'control characters, NUL among them': 'a\u0000b\u0001c\u001bd\u007fe\u0085f',
  'all kinds of line ends': 'a\nb\r\nc\rd\u2028e\u2029f\u000bg',
  'what looks like a frame': 'x\n\ndata: {"result":{"finishReason":"stop"}}\n\nevent: y\r\n\r\n: z',
  'quotes and backslashes': '"\'`\\ \\u0041 \\" {"a":"\\n"} </script><!-- ${x} %s',
  'marks that are not characters': '\ufeff \ufffd \uffff \u200b \u202e',
};

for (const [what, text] of Object.entries(TEXTS)) {
  test(`${what} come back as they were sent`, async () => {
    const chat = agent('echo').chat();
    const turn = chat.sendStream(text);
    let spoken = '';
    for await (const chunk of turn.stream) spoken += chunk.text;
    assert.equal(spoken, `echo: ${text}`);
    assert.equal((await turn.response).text, `echo: ${text}`);
    assert.equal(chat.state.last, text);
    const stored = await agent('echo').getSnapshot(chat.snapshotId);
    assert.deepEqual(stored.state.messages, echoed(text));
    assert.equal(stored.state.custom.last, text);
  });
}

test('a text in the characters of an artifact and of an error comes back', async () => {
  const chat = agent('echo').chat();
  await chat.send('artifact 漢字🙂.md тело é');
  assert.deepEqual(chat.artifacts, [{ name: '漢字🙂.md', parts: [{ text: 'тело é' }], metadata: { turn: 1 } }]);
  await assert.rejects(chat.send('fail все сломано 🙂'), { status: 'UNAVAILABLE', message: 'все сломано 🙂' });
});

// Genkit's frames are not ASCII, and its client loses a character whose bytes come in two reads.
beyondGenkit('a text of a megabyte of multi-byte characters comes back whole, twice', async () => {
  const text = 'é漢字🙂'.repeat(90_000);
  assert.ok(Buffer.byteLength(text) > 1_000_000);
  const chat = agent('echo').chat();
  for (const turns of [1, 2]) {
    const response = await chat.send(`${turns}${text}`);
    // Not assert.equal: its message would be a diff of megabytes.
    assert.ok(response.text === `echo: ${turns}${text}`, 'the answer differs');
    assert.ok(chat.state.last === `${turns}${text}`, 'the custom state differs');
  }
  const stored = await agent('echo').getSnapshot(chat.snapshotId);
  assert.ok(
    JSON.stringify(stored.state.messages) === JSON.stringify(echoed(`1${text}`, `2${text}`)),
    'the snapshot differs'
  );
});

test('large ASCII texts come back whole, with the state of a client-managed chat', async () => {
  const text = 'all work and no play '.repeat(20_000);
  const chat = agent('echoClient').chat();
  for (const turns of [1, 2, 3]) {
    const response = await chat.send(text);
    assert.ok(response.text === `echo: ${text}`, 'the answer differs');
    assert.equal(chat.state.turns, turns);
  }
  assert.ok(JSON.stringify(chat.messages) === JSON.stringify(echoed(text, text, text)), 'the messages differ');
});

test('a message of many parts comes back whole', async () => {
  const content = Array.from({ length: 5_000 }, (_, n) => ({ text: `${n},` }));
  const chat = agent('echo').chat();
  const response = await chat.send({ message: { role: 'user', content } });
  assert.equal(response.text, `echo: ${content.map((part) => part.text).join('')}`);
  const stored = await agent('echo').getSnapshot(chat.snapshotId);
  assert.deepEqual(stored.state.messages[0].content, content);
});

test('members with odd names stay in the custom state and are not patched by mistake', async () => {
  const odd = {
    '': 0,
    ' ': 1,
    '/': 2,
    'a/b': 3,
    '~': 4,
    'm~n': 5,
    '~1': 6,
    ключ: 7,
    '🔑': 8,
    '"\\': 9,
    '\u0000': 10,
    '-': 11,
    0: 12,
  };
  const custom = { ...odd, nested: { ...odd } };
  const chat = agent('echoClient').chat({ state: { custom, messages: [] } });
  for (const turns of [1, 2]) {
    await chat.send('hi');
    assert.deepEqual(chat.state, { ...custom, status: 'idle', turns, last: 'hi' });
  }
});

test('half a surrogate pair is echoed or refused, and harms nobody', async () => {
  for (const half of ['\\ud83d', 'x\\ude42y']) {
    const body = `{"data":{"message":{"role":"user","content":[{"text":"${half}"}]}},"init":{}}`;
    const { status, body: answer } = await plainTurn('echo', body);
    if (status === 200) assert.match(answer.result.message.content[0].text, /^echo: /);
    else assert.deepEqual([status, answer.status], [400, 'INVALID_ARGUMENT']);
    const { result, error } = await streamedTurn('echo', body);
    assert.ok(
      result?.finishReason === 'stop' || error?.status === 'INVALID_ARGUMENT',
      JSON.stringify({ result, error })
    );
  }
  assert.equal((await streamedTurn('echo', turnBody('still here'))).result.finishReason, 'stop');
});
