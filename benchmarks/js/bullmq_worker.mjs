// BullMQ's worker in a drain of no-op jobs.
import { epochMs, installed, options, serveDrain } from './common.mjs';
const { port, concurrency, result } = options({ port: 0, concurrency: 50, result: 'none' });
const { Worker } = installed('bullmq');
const value = { none: undefined, null: null, object: { ok: true } }[result];
const ran = [];
let done = 0, last = 0;
const worker = new Worker('bench', async (job) => {
  ran.push(job.data.i);
  return value;
}, { connection: { host: '127.0.0.1', port, maxRetriesPerRequest: null }, concurrency, autorun: false });
worker.on('completed', () => { done++; last = epochMs(); });
worker.on('error', () => {});
await serveDrain({
  ready: () => worker.waitUntilReady(),
  start: () => { worker.run(); },
  progress: () => ({ done, last, ran }),
  finish: async () => {},
});
