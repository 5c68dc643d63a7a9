// Jobs through 16 queues of bunqueue's engine in memory: 5,000 a push, 500 a pull, acknowledged by the same 500
// with the data as the result.
import { bunqueue, options, peakMiB, perSecond, report, residentMiB, Ticks } from './common.mjs';
const { n } = options({ n: 1000000 });
const { QueueManager } = await bunqueue('application/queueManager.js');
const engine = new QueueManager();
const QUEUES = 16, PUSH = 5000, PULL = 500;
const share = Math.ceil(n / QUEUES);
const queues = Array.from({ length: QUEUES }, (_, q) => ({ name: `queue-${q}`, from: q * share, to: Math.min(n, (q + 1) * share) }));
const before = residentMiB();

const t0 = performance.now();
await Promise.all(queues.map(async ({ name, from, to }) => {
  for (let first = from; first < to; first += PUSH) {
    const jobs = [];
    for (let i = first; i < Math.min(to, first + PUSH); i++) jobs.push({ data: { index: i }, removeOnComplete: true });
    await engine.pushBatch(name, jobs);
  }
}));
const t1 = performance.now();
const ok = engine.getStats().waiting === n;
const waiting_mib = residentMiB() - before;

const pulled = new Ticks(n), completed = new Ticks(n);
engine.subscribe((event) => { if (event.eventType === 'completed') completed.tick(event.data?.index); });
await Promise.all(queues.map(async ({ name }) => {
  for (;;) {
    const jobs = await engine.pullBatch(name, PULL, 0);
    if (!jobs.length) return;
    for (const job of jobs) pulled.tick(job.data.index);
    await engine.ackBatchWithResults(jobs.map((job) => ({ id: job.id, result: job.data })));
  }
}));
const t2 = performance.now();
report(ok && pulled.complete && completed.complete, {
  push: perSecond(n, t1 - t0), process: perSecond(n, t2 - t1), overall: perSecond(n, t2 - t0), waiting_mib, peak_mib: peakMiB(),
});
process.exit(0);
