// Memory that waiting jobs with about 100 bytes of data hold in bunqueue's engine.
import { bunqueue, options, pause, peakMiB, report, residentMiB } from './common.mjs';
const { n } = options({ n: 1000000 });
const { QueueManager } = await bunqueue('application/queueManager.js');
const engine = new QueueManager();
const filler = 'x'.repeat(72);
Bun.gc(true);
const before = residentMiB();
for (let first = 0; first < n; first += 1000) {
  const jobs = [];
  for (let id = first; id < first + 1000; id++) jobs.push({ data: { id, text: String(id).padStart(8, '0') + filler } });
  await engine.pushBatch('bench', jobs);
}
await pause(500);
Bun.gc(true);
await pause(500);
const held = residentMiB() - before;
report(engine.getStats().waiting === n, { bytes_per_job: (held * 1048576) / n, held_mib: held, peak_mib: peakMiB() });
process.exit(0);
