// Add N jobs {i} to the queue "bench" of a server with bunqueue's client, a thousand a call.
import { bunqueue, options, report } from './common.mjs';
const { port, n } = options({ port: 0, n: 20000 });
const { Queue } = await bunqueue('client/index.js');
const queue = new Queue('bench', { connection: { host: '127.0.0.1', port, pingInterval: 0 } });
for (let i = 0; i < n; i += 1000)
  await queue.addBulk(Array.from({ length: Math.min(1000, n - i) }, (_, k) => ({ name: 'job', data: { i: i + k } })));
report((await queue.getJobCountsAsync()).waiting === n, {});
process.exit(0);
