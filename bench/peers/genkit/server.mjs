// The echo agent on Genkit's express server, its sessions in Genkit's own file store.
//
//   node server.mjs DIRECTORY
//
// The agent does what Everturn's demo agent does: it notes in its custom state that it works, says what it heard in two
// chunks and one message, and notes how many turns there were.

import { expressHandler } from '@genkit-ai/express';
import express from 'express';
import { FileSessionStore, genkit } from 'genkit/beta';

const ai = genkit({});

const echo = ai.defineCustomAgent(
  { name: 'echo', store: new FileSessionStore(process.argv[2]) },
  async (session, { sendChunk }) => {
    await session.run(async (input) => {
      const text = (input.message?.content ?? []).map((part) => part.text ?? '').join('');
      session.updateCustom((custom) => ({ ...custom, status: 'working' }));
      for (const part of ['echo: ', text]) {
        sendChunk({ modelChunk: { role: 'model', content: [{ text: part }] } });
      }
      session.addMessages([{ role: 'model', content: [{ text: `echo: ${text}` }] }]);
      const turns = session.getMessages().filter((message) => message.role === 'user').length;
      session.updateCustom((custom) => ({ ...custom, turns, last: text, status: 'idle' }));
      return { finishReason: 'stop' };
    });
    return { message: session.getMessages().at(-1) };
  },
);

const app = express();
app.use(express.json());
app.post('/echo', expressHandler(echo));
const server = app.listen(0, '127.0.0.1', () => console.log(`listens on http://127.0.0.1:${server.address().port}`));
