// bunqueue's engine in memory: one operation a call, then batches of 1,000.
import { bunqueue, options, perSecond, report } from './common.mjs';
const { n } = options({ n: 50000 });
const { QueueManager } = await bunqueue('application/queueManager.js');
const engine = new QueueManager();
const Q = 'bench', WARM = 100;
const figures = {};
let ok = true;

async function measure(name, step) {
  for (let i = 0; i < WARM; i++) await step();
  const start = performance.now();
  for (let i = 0; i < n; i++) await step();
  figures[name] = perSecond(n, performance.now() - start);
}
const waiting = () => engine.getStats().waiting;
async function fill() {
  for (let i = 0; i < n + WARM; i++) await engine.push(Q, { data: { id: i } });
}

let next = 0;
await measure('push', async () => { await engine.push(Q, { data: { id: next++, payload: 'benchmark-data' } }); });
ok &&= waiting() === n + WARM;
engine.drain(Q);

await fill();
const pulled = new Set();
await measure('pull', async () => { pulled.add((await engine.pull(Q, 0)).id); });
ok &&= pulled.size === n + WARM;
for (const id of pulled) await engine.ack(id);

await fill();
const held = [];
for (let i = 0; i < n + WARM; i++) held.push((await engine.pull(Q, 0)).id);
let at = 0;
await measure('ack', async () => { await engine.ack(held[at++]); });

let start = performance.now();
for (let i = 0; i < n; i++) {
  await engine.push(Q, { data: { id: i } });
  const job = await engine.pull(Q, 0);
  await engine.ack(job.id);
}
figures.full_cycle = perSecond(n, performance.now() - start);
ok &&= waiting() === 0;

const jobs = Array.from({ length: 1000 }, (_, i) => ({ data: { id: i } }));
const batches = Math.ceil(n / 1000);
start = performance.now();
for (let b = 0; b < batches; b++) await engine.pushBatch(Q, jobs);
figures.push_batch_1000 = perSecond(1000 * batches, performance.now() - start);
ok &&= waiting() === 1000 * batches;

report(ok, figures);
process.exit(0);
