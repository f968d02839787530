// Tools that stop a turn to ask a person, and the turns that answer.

import { agent, AgentError, assert, model, rejection, streamedTurn, test, turnBody, user } from './support.mjs';

const rolesAt = async (snapshotId) => (await agent('asker').getSnapshot(snapshotId)).state.messages.map((m) => m.role);

async function interrupted(text) {
  const chat = agent('asker').chat();
  const response = await chat.send(text);
  assert.equal(response.finishReason, 'interrupted');
  assert.equal(response.interrupts.length, 1);
  return { chat, response, interrupt: response.interrupts[0] };
}

test('a plain question is answered, and the preamble of the prompt is not stored', async () => {
  const chat = agent('asker').chat();
  const response = await chat.send('hello');
  assert.equal(response.text, 'plain: hello');
  assert.equal(response.finishReason, 'stop');
  const stored = await agent('asker').getSnapshot(chat.snapshotId);
  assert.deepEqual(stored.state.messages, [user('hello'), model('plain: hello')]);
});

test('a tool that asks interrupts the turn, which is a good place to go on from', async () => {
  const { chat, response, interrupt } = await interrupted('ask ok?');
  assert.equal(interrupt.name, 'confirm');
  assert.equal(interrupt.ref, 'r1');
  assert.deepEqual(interrupt.input, { question: 'ok?' });
  const part = {
    toolRequest: { name: 'confirm', ref: 'r1', input: { question: 'ok?' } },
    metadata: { interrupt: true },
  };
  assert.deepEqual(response.message, { role: 'model', content: [part] });
  const stored = await agent('asker').getSnapshot(chat.snapshotId);
  assert.equal(stored.status, 'completed');
  assert.equal(stored.finishReason, 'interrupted');
  assert.deepEqual(stored.state.messages, [user('ask ok?'), response.message]);
});

test('what is asked is streamed as a chunk of the role tool', async () => {
  const { chunks, result } = await streamedTurn('asker', turnBody('ask ok?'));
  const [asked, end] = chunks.slice(-2);
  assert.equal(asked.modelChunk.role, 'tool');
  assert.deepEqual(asked.modelChunk.content, result.message.content);
  assert.deepEqual(end, { turnEnd: { snapshotId: result.snapshotId, finishReason: 'interrupted' } });
});

test('an answer goes on from the question', async () => {
  const { chat, interrupt } = await interrupted('ask ok?');
  const asked = chat.snapshotId;
  const response = await chat.resume({ respond: [interrupt.respond({ ok: true })] });
  assert.equal(response.text, 'answer: {"ok":true}');
  assert.equal(response.finishReason, 'stop');
  assert.deepEqual(await rolesAt(chat.snapshotId), ['user', 'model', 'tool', 'model']);
  const stored = await agent('asker').getSnapshot(chat.snapshotId);
  assert.equal(stored.parentId, asked);
  const { toolResponse } = stored.state.messages[2].content[0];
  assert.deepEqual([toolResponse.name, toolResponse.ref, toolResponse.output], ['confirm', 'r1', { ok: true }]);
  await chat.send('and now');
  assert.deepEqual(await rolesAt(chat.snapshotId), ['user', 'model', 'tool', 'model', 'user', 'model']);
});

test('a loaded chat can answer what was asked before', async () => {
  const { chat, interrupt } = await interrupted('ask ok?');
  const loaded = await agent('asker').loadChat({ sessionId: chat.sessionId });
  const response = await loaded.resume({ respond: [interrupt.respond('yes')] });
  assert.equal(response.text, 'answer: "yes"');
});

test('one question can be answered twice, each on its own line', async () => {
  const { chat, interrupt } = await interrupted('ask ok?');
  const { snapshotId } = chat;
  const answer = (output) =>
    agent('asker')
      .chat({ snapshotId })
      .resume({ respond: [interrupt.respond(output)] });
  assert.equal((await answer(1)).text, 'answer: 1');
  assert.equal((await answer(2)).text, 'answer: 2');
});

test('a restart runs the tool again', async () => {
  const { chat, interrupt } = await interrupted('pay 5');
  assert.equal(interrupt.name, 'pay');
  assert.equal(interrupt.ref, 'r2');
  assert.deepEqual(interrupt.input, { amount: 5 });
  // The client's own restart() leaves out what tells the tool that it was asked before.
  const restart = [{ ...interrupt.restart(), metadata: { resumed: true } }];
  const response = await chat.resume({ restart });
  assert.equal(response.text, 'answer: "paid 5"');
  assert.equal(response.finishReason, 'stop');
  assert.deepEqual(await rolesAt(chat.snapshotId), ['user', 'model', 'tool', 'model']);
});

const refusals = {
  'a restart with another input': [
    ({ interrupt }) => ({
      restart: [
        { toolRequest: { ...interrupt.restart().toolRequest, input: { amount: 5000 } }, metadata: { resumed: true } },
      ],
    }),
    /modified inputs/,
  ],
  'a restart of a call nobody made': [
    ({ interrupt }) => ({
      restart: [{ toolRequest: { ...interrupt.restart().toolRequest, ref: 'r9' }, metadata: { resumed: true } }],
    }),
    /not found in session history/,
  ],
  'an answer to a call nobody made': [
    () => ({ respond: [{ toolResponse: { name: 'pay', ref: 'r9', output: 'paid' } }] }),
    /not found in session history/,
  ],
  'an answer to a tool nobody called': [
    () => ({ respond: [{ toolResponse: { name: 'steal', ref: 'r2', output: 'paid' } }] }),
    /not found in session history/,
  ],
};

for (const [what, [resume, why]] of Object.entries(refusals)) {
  test(`${what} fails the turn, and the question stays open`, async () => {
    const asked = await interrupted('pay 5');
    const error = await rejection(asked.chat.resume(resume(asked)));
    assert.ok(error instanceof AgentError);
    assert.equal(error.status, 'INVALID_ARGUMENT');
    assert.match(error.message, why);
    assert.equal(error.snapshotId, asked.response.snapshotId);
    const restart = [{ ...asked.interrupt.restart(), metadata: { resumed: true } }];
    assert.equal((await asked.chat.resume({ restart })).text, 'answer: "paid 5"');
  });
}
