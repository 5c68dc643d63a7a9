// The TypeScript half of jobs that cross between two languages.
//
//     bun interop.ts PORT QUEUE produce   adds one job of each kind, prints {kind: id}, then what each returned
//     bun interop.ts PORT QUEUE work      runs jobs until a line arrives on its input, prints a line for each
//
// What a value is, is described in the same words on both sides: a kind and a text.
import { Queue, QueueEvents, UnrecoverableError, Worker } from 'bunqueue/client';

const [port, queueName, mode] = process.argv.slice(2);
const connection = { host: '127.0.0.1', port: Number(port), pingInterval: 0 };
const say = (value: unknown) => process.stdout.write(JSON.stringify(value) + '\n');
const hex = (view: ArrayBufferView) => Buffer.from(view.buffer, view.byteOffset, view.byteLength).toString('hex');
type Any = any;

function described(value: Any): Any {
  if (value === undefined) return ['nothing'];
  if (value === null) return ['null'];
  if (typeof value === 'bigint') return ['int', String(value)];
  if (typeof value === 'number') return Number.isSafeInteger(value) ? ['int', String(value)] : ['float', Number.isFinite(value) ? value.toExponential(6) : String(value).toLowerCase()];
  if (typeof value === 'string') return ['text', value];
  if (typeof value === 'boolean') return ['bool', value];
  if (value instanceof Date) return ['date', value.getTime()];
  if (ArrayBuffer.isView(value)) return ['bytes', hex(value)];
  if (Array.isArray(value)) return ['list', value.map(described)];
  return ['map', Object.keys(value).sort().map((key) => [key, described(value[key])])];
}

const numbers = [1, 2, 250, -3];
const backing = new Uint8Array(64).fill(0xee); // what lies around a view must never show
const float32 = new Float32Array(backing.buffer, 8, 3);
float32.set([1.5, -2.25, 3e10]);

// The client's packer copies a typed array element by element into bytes: wide elements would be cut, 64-bit ones
// refused. Who sends one sends its bytes.
const bytes = (view: ArrayBufferView) => new Uint8Array(view.buffer, view.byteOffset, view.byteLength);

/** One value of each kind. */
const values: Record<string, Any> = {
  nested: { a: [1, { b: null, c: [true, 'ä語😀', -0.5] }], '': 'empty key', 'ключ': 1 },
  date: { at: new Date(1_700_000_000_123), list: [new Date(0), new Date(-1000)] },
  int8: { v: new Int8Array(numbers) },
  uint8: { v: new Uint8Array(numbers) },
  clamped: { v: new Uint8ClampedArray(numbers) },
  int16: { v: bytes(new Int16Array(numbers)) },
  uint16: { v: bytes(new Uint16Array(numbers)) },
  int32: { v: bytes(new Int32Array(numbers)) },
  uint32: { v: bytes(new Uint32Array(numbers)) },
  float32: { v: bytes(float32) },
  float64: { v: bytes(new Float64Array([1.5, Math.PI, -1e300])) },
  bigint64: { v: bytes(new BigInt64Array([1n, -(2n ** 63n)])) },
  biguint64: { v: bytes(new BigUint64Array([2n ** 64n - 1n])) },
  dataview: { v: bytes(new DataView(backing.buffer, 8, 12)) },
  buffer: { v: Buffer.from([0, 255, 1]) },
  bigint: { small: 5n, wide: 2n ** 60n + 1n, negative: -(2n ** 62n), top: 2n ** 64n - 1n },
  numbers: { safe: 2 ** 53 - 1, below: -(2 ** 40), u32: 2 ** 32 - 1, half: 0.5, huge: 1e300, nan: NaN, inf: -Infinity },
};

if (mode === 'produce') {
  const queue = new Queue<Any>(queueName, { connection });
  const events = new QueueEvents(queueName, { connection });
  await events.waitUntilReady();
  const progress: Any[] = [];
  const ended: Record<string, Any> = {};
  const byId: Record<string, string> = {};
  let done: () => void;
  const all = new Promise<void>((resolve) => { done = resolve; });
  const end = (id: string, value: Any) => { ended[id] = value; if (Object.keys(byId).length && Object.keys(byId).every((k) => k in ended)) done(); };
  events.on('progress', ({ jobId, data }) => progress.push([jobId, data]));
  events.on('completed', ({ jobId, returnvalue }) => end(jobId, { returned: described(returnvalue) }));
  events.on('failed', ({ jobId, failedReason }: Any) => end(jobId, { failed: failedReason }));
  const added: Record<string, string> = {};
  for (const [kind, data] of Object.entries(values)) {
    added[kind] = (await queue.add(kind, data)).id;
  }
  added.broken = (await queue.add('broken', {}, { attempts: 1 })).id;
  added.slow = (await queue.add('slow', { steps: 3 })).id;
  for (const [kind, id] of Object.entries(added)) byId[id] = kind;
  say({ added });
  await all;
  const read: Record<string, Any> = {};
  for (const [kind, id] of Object.entries(added)) {
    const job = await queue.getJob(id);
    read[kind] = { state: await queue.getJobState(id), returned: described(job!.returnvalue), trace: job!.stacktrace, reason: job!.failedReason };
  }
  say({ ended: Object.fromEntries(Object.entries(ended).map(([id, v]) => [byId[id], v])), read,
    progress: progress.filter(([id]) => byId[id] === 'slow').map(([, data]) => data) });
} else {
  const worker = new Worker<Any, Any>(queueName, async (job) => {
    say({ ran: job.name, data: described(job.data), attempts: job.attemptsMade });
    if (job.name === 'broken') throw new TypeError('broken there');
    if (job.name === 'final') throw new UnrecoverableError('never again');
    if (job.name === 'slow') { await job.updateProgress(25, 'a quarter'); await job.updateProgress(75); await job.log('nearly'); }
    return job.name in values ? values[job.name] : job.data;
  }, { connection, concurrency: 1, pollTimeout: 500, heartbeatInterval: 500, autorun: false });
  worker.on('error', (error) => say({ error: error.message }));
  await worker.waitUntilReady();
  say({ ready: true });
  worker.run();
  for await (const _ of process.stdin) break;
  await worker.close();
}
process.exit(0);
