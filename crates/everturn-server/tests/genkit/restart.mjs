// What was acknowledged is there after the server was killed. Run twice, with the server killed and started again on
// the same store in between: with EVERTURN_PHASE=write, then with EVERTURN_PHASE=read. EVERTURN_NOTE names the file that
// tells the second run what the first one did.

import { readFileSync, writeFileSync } from 'node:fs';

import { agent, assert, echoed, rejection, streamedTurn, test, turnBody } from './support.mjs';

const phase = process.env.EVERTURN_PHASE;
const note = process.env.EVERTURN_NOTE;
assert.ok(
  note && ['write', 'read'].includes(phase),
  'set EVERTURN_PHASE to write or read, and EVERTURN_NOTE to a file'
);

async function write() {
  const chat = agent('echo').chat();
  await chat.send('artifact a.md body');
  await chat.send('two 🙂');
  const snapshot = await agent('echo').getSnapshot(chat.snapshotId);
  await rejection(chat.send('fail in between'));
  const failed = (await streamedTurn('echo', turnBody('fail alone'))).result;
  writeFileSync(note, JSON.stringify({ snapshot, failed }));
}

async function read() {
  const { snapshot, failed } = JSON.parse(readFileSync(note, 'utf8'));
  const { snapshotId, sessionId } = snapshot;
  assert.deepEqual(await agent('echo').getSnapshot(snapshotId), snapshot);

  const chat = await agent('echo').loadChat({ snapshotId });
  assert.deepEqual(chat.artifacts, snapshot.state.artifacts);
  await chat.send('three');
  assert.equal(chat.sessionId, sessionId);
  assert.deepEqual(chat.messages, [...snapshot.state.messages, ...echoed('three')]);
  assert.equal(chat.state.turns, 3);

  const bySession = agent('echo').chat({ sessionId });
  await bySession.send('four');
  assert.equal(bySession.state.turns, 4);

  const again = agent('echo').chat({ snapshotId: failed.snapshotId });
  await again.send('after the failure');
  assert.equal(again.sessionId, failed.sessionId);
  assert.deepEqual((await agent('echo').getSnapshot(again.snapshotId)).state.messages, echoed('after the failure'));
}

test(`a chat goes on after the server was killed: ${phase}`, phase === 'write' ? write : read);
