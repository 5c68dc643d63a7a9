// Add N jobs {i} to BullMQ's queue "bench", a thousand a call.
import { installed, options, report } from './common.mjs';
const { port, n } = options({ port: 0, n: 20000 });
const { Queue } = installed('bullmq');
const queue = new Queue('bench', { connection: { host: '127.0.0.1', port, maxRetriesPerRequest: null } });
await queue.waitUntilReady();
for (let i = 0; i < n; i += 1000)
  await queue.addBulk(Array.from({ length: Math.min(1000, n - i) }, (_, k) => ({ name: 'job', data: { i: i + k } })));
report((await queue.getJobCounts('waiting')).waiting === n, {});
process.exit(0);
