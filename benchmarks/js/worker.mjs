// bunqueue's worker in a drain of no-op jobs. What a job returns matters to its server on disk: only a batch
// without any result is completed in one transaction.
import { bunqueue, epochMs, options, serveDrain } from './common.mjs';
const { port, concurrency, batch, result } = options({ port: 0, concurrency: 50, batch: 20, result: 'none' });
const { Worker } = await bunqueue('client/index.js');
const value = { none: undefined, null: null, object: { ok: true } }[result];
const ran = [];
let done = 0, last = 0;
const worker = new Worker('bench', async (job) => {
  ran.push(job.data.i);
  return value;
}, {
  connection: { host: '127.0.0.1', port, pingInterval: 0 },
  concurrency, batchSize: batch, heartbeatInterval: 5000, autorun: false,
});
worker.on('completed', () => { done++; last = epochMs(); });
worker.on('error', () => {});
await serveDrain({
  ready: () => worker.waitUntilReady(),
  start: () => { worker.run(); },
  progress: () => ({ done, last, ran }),
  finish: () => worker.close(true),
});
