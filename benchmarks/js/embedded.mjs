// bunqueue inside a program, on a fresh SQLite file: adds in bulk until flushed, or one durable add at a time.
import { bunqueue, options, perSecond, report } from './common.mjs';
const { what, n, file } = options({ what: 'bulk', n: 50000, file: '' });
const { Queue, shutdownManager } = await bunqueue('client/index.js');
const queue = new Queue('bench', { embedded: true, dataPath: file });
if (what === 'bulk') {
  const text = 'x'.repeat(100);
  await queue.addBulk([{ name: 'warm', data: { i: -1, text } }]);
  let start = performance.now();
  for (let i = 0; i < n; i += 1000)
    await queue.addBulk(Array.from({ length: 1000 }, (_, k) => ({ name: 'job', data: { i: i + k, text } })));
  const adding = performance.now() - start;
  const ok = (await queue.getWaitingCount()) === n + 1;
  start = performance.now();
  shutdownManager();
  report(ok, { add_bulk: perSecond(n, adding), add_bulk_to_disk: perSecond(n, adding + performance.now() - start) });
} else {
  const durable = what === 'durable';
  const took = new Float64Array(n);
  for (let i = 0; i < 50; i++) await queue.add('job', { i }, { durable });
  const start = performance.now();
  for (let i = 0; i < n; i++) {
    const before = performance.now();
    await queue.add('job', { i }, { durable });
    took[i] = 1000 * (performance.now() - before);
  }
  const ms = performance.now() - start;
  took.sort();
  report((await queue.getWaitingCount()) === n + 50, {
    add: perSecond(n, ms), p50_us: took[n >> 1], p99_us: took[Math.floor(n * 0.99)],
  });
}
process.exit(0);
