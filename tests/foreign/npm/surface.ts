// Drives the public surface of the npm package `bunqueue` against a server and prints what its user sees.
//
//     bun surface.ts PORT
//
// Prints one JSON map: section -> what came back. Ids are numbered by first sight and times are "ms", so that the
// same calls against two servers can be compared word for word. A section that throws says what.
import { DelayedError, FlowProducer, Queue, QueueEvents, QueueGroup, RateLimitError, UnrecoverableError, Worker, Bunqueue } from 'bunqueue/client';

const port = Number(process.argv[2]);
const only = process.argv[3] ? new Set(process.argv[3].split(',')) : null;
const connection = { host: '127.0.0.1', port, pingInterval: 0, poolSize: 1 };
const run = `r${process.pid}${Date.now().toString(36)}`;
const PATIENCE_MS = 20_000;
type Any = any;

// --- what is the same everywhere -----------------------------------------------------------------

const ID = /[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/g;

class Plain {
  private ids = new Map<string, string>();

  text(value: string): string {
    return value.replaceAll(run, 'RUN').replace(/\b1[78]\d{11}\b/g, 'ms').replace(ID, (id) => {
      if (!this.ids.has(id)) this.ids.set(id, `id${this.ids.size + 1}`);
      return this.ids.get(id)!;
    });
  }

  of(value: Any, key = ''): Any {
    if (typeof value === 'string') return this.text(value);
    if (typeof value === 'bigint') return `${value}n`;
    if (typeof value === 'number') {
      if (value > 1.5e12 && value < 4e12) return 'ms';
      // Reckoned from the clock, or drawn by chance: what was asked for, give or take.
      if (key === 'delay' && value > 0) return value < 1000 ? 'soon' : Math.round(value / 10_000);
      return Number.isFinite(value) ? value : String(value);
    }
    if (value instanceof Date) return { date: value.toISOString() };
    if (value instanceof Error) return { error: this.text(value.message), name: value.name };
    if (value instanceof Map) return { map: [...value].map(([k, v]) => [this.of(k), this.of(v)]) };
    if (value instanceof Set) return { set: [...value].map((v) => this.of(v)) };
    if (ArrayBuffer.isView(value)) return { bytes: Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString('hex') };
    if (Array.isArray(value)) return value.map((v) => (v === undefined ? null : this.of(v)));
    if (value === null || typeof value !== 'object') return value;
    const out: Record<string, Any> = {};
    for (const k of Object.keys(value).sort()) {
      // `_state` is a leftover that only the reference sends; a measured duration is no behaviour.
      if (value[k] === undefined || typeof value[k] === 'function' || k === '_state' || k === 'duration') continue;
      out[this.text(k)] = this.of(value[k], k);
    }
    return out;
  }
}

const out: Record<string, Any> = {};
const open: Array<() => Promise<unknown> | unknown> = [];

async function section(name: string, body: (q: Queue<Any>, queueName: string) => Promise<Any>): Promise<void> {
  if (only && !only.has(name)) return;
  const queueName = `${run}-${name}`;
  const queue = new Queue<Any>(queueName, { connection });
  const plain = new Plain();
  const began = performance.now();
  try {
    out[name] = plain.of(await within(body(queue, queueName), PATIENCE_MS, `section ${name}`));
  } catch (error) {
    out[name] = { threw: plain.of(error) };
  }
  while (open.length) await Promise.race([Promise.resolve(open.pop()!()).catch(() => undefined), sleep(3000)]);
  queue.close();
  if (process.env.TIMES) console.error(name, Math.round(performance.now() - began));
}

const sleep = (ms: number) => new Promise((r) => setTimeout(r, ms));

function within<T>(promise: Promise<T>, ms: number, what: string): Promise<T> {
  let timer: Any;
  const late = new Promise<never>((_, reject) => { timer = setTimeout(() => reject(new Error(`${what}: nothing in time`)), ms); });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** What a call gives, or the text of what it throws. */
async function tried(call: () => Any): Promise<Any> {
  try {
    return await call();
  } catch (error) {
    return error;
  }
}

async function until(there: () => Promise<boolean> | boolean): Promise<void> {
  while (!(await there())) await sleep(5);
}

function worker(name: string, processor: Any, options: Any = {}): Worker<Any, Any> {
  const w = new Worker<Any, Any>(name, processor, { connection, pollTimeout: 1000, heartbeatInterval: 1000, ...options });
  w.on('error', () => undefined);
  open.push(() => w.close(true));
  return w;
}

/** Resolves when `n` jobs of a worker have ended. */
function ends(w: Worker<Any, Any>, n: number): Promise<Any[]> {
  const seen: Any[] = [];
  return new Promise((resolve) => {
    w.on('completed', (job, result) => { seen.push(['completed', job.name, result]); if (seen.length === n) resolve(seen); });
    w.on('failed', (job, error) => { seen.push(['failed', job.name, error.message]); if (seen.length === n) resolve(seen); });
  });
}

const jobView = (job: Any) => job && {
  json: job.toJSON(), raw: job.asJSON(), priority: job.priority, attemptsStarted: job.attemptsStarted,
  stalledCounter: job.stalledCounter, parent: job.parent, parentKey: job.parentKey, deduplicationId: job.deduplicationId,
  repeatJobKey: job.repeatJobKey, queueName: job.queueName, delay: job.delay,
};

// --- adding and looking --------------------------------------------------------------------------

await section('add', async (q) => {
  const a = await q.add('plain', { n: 1, deep: { list: [1, null, 'ä語'] } });
  const b = await q.add('all', { n: 2 }, {
    priority: 7, attempts: 5, backoff: { type: 'fixed', delay: 1234 }, timeout: 60_000, jobId: `${run}-own`,
    removeOnComplete: true, removeOnFail: true, stallTimeout: 40_000, durable: true, lifo: true, stackTraceLimit: 3, keepLogs: 4,
  });
  const c = await q.add('late', [1, 2], { delay: 3_600_000 });
  const again = await q.add('all', { n: 3 }, { jobId: `${run}-own` });
  const values: Any[] = [null, 0, '', false, 'text', 1.5, [], {}];
  const odd = [];
  for (const value of values) odd.push((await q.getJob((await q.add('odd', value)).id))!.data);
  return {
    same: again.id === b.id, a: jobView(await q.getJob(a.id)), b: jobView(await q.getJob(b.id)), c: jobView(await q.getJob(c.id)),
    states: [await a.getState(), await q.getJobState(b.id), await c.getState(), await q.getJobState('nobody')],
    is: [await a.isWaiting(), await a.isActive(), await c.isDelayed(), await a.isCompleted(), await a.isFailed(), await a.isWaitingChildren()],
    missing: await q.getJob('nobody'), odd,
  };
});

await section('refusals', async (q) => ({
  queue: await tried(() => new Queue('no good!', { connection, autoBatch: { enabled: false } }).add('x', {})),
  name: await tried(() => q.add('', {})),
  long: await tried(() => q.add('x'.repeat(300), {})),
  remove: await tried(() => q.removeAsync('nobody')),
  promote: await tried(() => q.promoteJob('nobody')),
  retry: await tried(() => q.retryJob('nobody')),
  update: await tried(() => q.updateJobData('nobody', {})),
  progress: await tried(() => q.updateJobProgress('nobody', 1)),
  completed: await tried(() => q.moveJobToCompleted('nobody', 1)),
  failed: await tried(() => q.moveJobToFailed('nobody', new Error('x'))),
  delayed: await tried(() => q.moveJobToDelayed('nobody', Date.now() + 1000)),
  log: await tried(() => q.addJobLog('nobody', 'x')),
  lock: await tried(() => q.extendJobLock('nobody', 't', 1000)),
  wait: await tried(() => q.waitJobUntilFinished('nobody', null, 50)),
  big: await tried(() => q.add('x', { text: 'x'.repeat(11 * 1024 * 1024) })),
}));

await section('bulk', async (q) => {
  const jobs = await q.addBulk(Array.from({ length: 30 }, (_, i) => ({
    name: `n${i % 3}`, data: { i }, opts: { priority: i % 4, ...(i % 10 === 9 ? { delay: 600_000 } : {}) } })));
  const names = (list: Any[]) => list.map((job) => [job.name, job.data.i]);
  return {
    different: new Set(jobs.map((job) => job.id)).size, names: names(jobs),
    counts: await q.getJobCountsAsync(), count: await q.countAsync(), perPriority: await q.getCountsPerPriorityAsync(),
    each: [await q.getWaitingCount(), await q.getPrioritizedCount(), await q.getDelayedCount(), await q.getActiveCount(),
      await q.getCompletedCount(), await q.getFailedCount(), await q.getWaitingChildrenCount()],
    waiting: names(await q.getWaitingAsync()), page: names(await q.getWaitingAsync(1, 2)), delayed: names(await q.getDelayedAsync()),
    prioritized: names(await q.getPrioritized()), all: names(await q.getJobsAsync()),
    two: names(await q.getJobsAsync({ state: ['waiting', 'delayed'], start: 2, end: 6, asc: false })),
    none: [await q.getActiveAsync(), await q.getCompletedAsync(), await q.getFailedAsync(), await q.getWaitingChildren()],
  };
});

await section('change', async (q) => {
  const job = await q.add('j', { v: 1 }, { delay: 600_000 });
  await job.updateData({ v: 2 });
  await job.changePriority({ priority: 9 });
  await job.changeDelay(500_000);
  const view = async () => { const v = jobView(await q.getJob(job.id)); return { ...v, raw: null }; };
  const changed = await view();
  await q.changeJobPriority(job.id, { priority: 3, lifo: true });
  await q.changeJobDelay(job.id, 400_000);
  await q.updateJobData(job.id, 'text');
  const again = await view();
  await job.promote();
  const promoted = await job.getState();
  const more = await q.addBulk([1, 2, 3].map((i) => ({ name: 'd', data: i, opts: { delay: 600_000 + i } })));
  const some = await q.promoteJobs({ count: 2 });
  const rest = await q.promoteJobs();
  await q.promoteJob((await q.add('p', 0, { delay: 100_000 })).id);
  await job.remove();
  return { changed, again, promoted, some, rest, counts: await q.getJobCountsAsync(), gone: await job.getState(),
    states: await Promise.all(more.map((m) => m.getState())) };
});

await section('pause', async (q, name) => {
  const seen = [await q.isPausedAsync()];
  await q.pauseAsync();
  seen.push(await q.isPausedAsync());
  await q.addBulk([{ name: 'a', data: 1 }, { name: 'b', data: 2, opts: { priority: 3 } }]);
  const counts = await q.getJobCountsAsync();
  const listed = (await q.getJobsAsync({ state: 'paused' })).map((job) => job.name);
  const w = worker(name, async (job: Any) => job.data, { concurrency: 1 });
  const ended = ends(w, 2);
  await w.waitUntilReady();
  await sleep(100);
  const held = await q.getJobCountsAsync();
  await q.resumeAsync();
  seen.push(await q.isPausedAsync());
  return { seen, counts, listed, held, ended: await ended };
});

await section('clean', async (q, name) => {
  await q.addBulk([1, 2, 3, 4].map((i) => ({ name: 'a', data: i })));
  const drained = await q.drainAsync();
  await q.addBulk([1, 2, 3, 4].map((i) => ({ name: 'a', data: i, opts: { attempts: 1 } })));
  const w = worker(name, async (job: Any) => { if (job.data % 2) throw new Error('odd'); return job.data; }, { concurrency: 1 });
  await ends(w, 4);
  await w.close();
  const counts = await q.getJobCountsAsync();
  const completed = await q.cleanAsync(0, 1, 'completed');
  const failed = await q.cleanAsync(0, 100, 'failed');
  const young = await q.cleanAsync(3_600_000, 100, 'completed');
  await q.add('x', 1);
  const waiting = await q.cleanAsync(0, 100, 'wait');
  await q.addBulk([1, 2].map((i) => ({ name: 'a', data: i })));
  await q.obliterateAsync();
  return { drained, counts, completed: completed.length, failed: failed.length, young, waiting: waiting.length, after: await q.getJobCountsAsync() };
});

// --- workers -------------------------------------------------------------------------------------

await section('worker', async (q, name) => {
  const told: Any[] = [];
  const results: Any[] = [{ a: 1 }, null, 0, '', false, [1, [2]], 'text', undefined, { u: undefined, n: null }];
  const jobs = await q.addBulk(results.map((_, i) => ({ name: `j${i}`, data: { i } })));
  const w = worker(name, async (job: Any) => {
    told.push(['runs', job.name, job.data, job.attemptsMade, job.attemptsStarted, await job.getState()]);
    await job.updateProgress(50, 'half');
    await job.log(`line of ${job.name}`);
    return results[job.data.i];
  }, { concurrency: 1, batchSize: 1, autorun: false });
  w.on('active', (job) => told.push(['active', job.name]));
  w.on('progress', (job, progress) => told.push(['progress', job?.name, progress]));
  w.on('completed', (job, result) => told.push(['completed', job.name, result]));
  const state = [w.isRunning(), w.isPaused(), w.isClosed(), w.concurrency];
  const ended = ends(w, results.length);
  const drained = new Promise((resolve) => w.once('drained', () => resolve(true)));
  w.run();
  await ended;
  const seen = [];
  for (const job of jobs) {
    const now = await q.getJob(job.id);
    seen.push([jobView(now), await q.getJobLogs(job.id), await now!.isCompleted(), now!.returnvalue === undefined ? 'none' : now!.returnvalue]);
  }
  const workers = (await q.getWorkers()).map((o: Any) => ({ ...o, id: 'id', hostname: 'host', pid: 'pid', uptime: 0, name: typeof o.name, addr: typeof o.addr, age: 0, idle: 0, lastSeen: 0 }));
  return { told, state, drained: await within(drained, 5000, 'drained'), seen, workers: workers.length, counts: await q.getJobCountsAsync() };
});

await section('concurrency', async (q, name) => {
  await q.addBulk(Array.from({ length: 200 }, (_, i) => ({ name: 'j', data: i })));
  let now = 0, most = 0;
  const ran: number[] = [];
  const w = worker(name, async (job: Any) => {
    most = Math.max(most, ++now);
    ran.push(job.data);
    await sleep(1);
    now--;
    return job.data * 2;
  }, { concurrency: 10, batchSize: 20 });
  const ended = await ends(w, 200);
  return { most: most <= 10 && most > 1, once: new Set(ran).size, sum: ended.reduce((s, e) => s + e[2], 0), counts: await q.getJobCountsAsync() };
});

await section('retries', async (q, name) => {
  const jobs = await q.addBulk([
    { name: 'flaky', data: 0, opts: { attempts: 3, backoff: { type: 'fixed' as const, delay: 5 } } },
    { name: 'doomed', data: 0, opts: { attempts: 2, backoff: 1, stackTraceLimit: 2 } },
    { name: 'final', data: 0, opts: { attempts: 5 } },
    { name: 'gone', data: 0, opts: { attempts: 1, removeOnFail: true } },
    { name: 'thrown', data: 0, opts: { attempts: 1 } },
  ]);
  const tries: Record<string, number> = {};
  const w = worker(name, async (job: Any) => {
    tries[job.name] = (tries[job.name] ?? 0) + 1;
    if (job.name === 'final') throw new UnrecoverableError('never again');
    if (job.name === 'thrown') throw 'a text';
    if (job.name !== 'flaky' || tries.flaky < 3) throw new Error(`try ${tries[job.name]} of ${job.name}`);
    return 'at last';
  }, { concurrency: 1 });
  const ended = await ends(w, 8);
  const views = [];
  for (const job of jobs) {
    const found = await q.getJob(job.id);
    const view = jobView(found);
    if (view) { view.json.stacktrace = view.json.stacktrace?.length ?? null; view.raw = null; }
    views.push(view);
  }
  return { tries, ended: ended.map((e) => e.join(' ')).sort(), views, counts: await q.getJobCountsAsync() };
});

await section('moves', async (q, name) => {
  const jobs = await q.addBulk(['later', 'again', 'limited'].map((n) => ({ name: n, data: 0, opts: { attempts: 1 } })));
  const tries: Record<string, number> = {};
  const w = worker(name, async (job: Any) => {
    const n = (tries[job.name] = (tries[job.name] ?? 0) + 1);
    if (n > 1) return n;
    if (job.name === 'later') { await job.moveToDelayed(Date.now() + 30, job.token); throw new DelayedError(); }
    if (job.name === 'again') { await job.moveToWait(job.token); throw new RateLimitError(); }
    await job.changeDelay(20);
    throw new DelayedError();
  }, { concurrency: 1, batchSize: 1 });
  const ended = await ends(w, 3);
  const views = [];
  for (const job of jobs) { const v = jobView(await q.getJob(job.id)); v.json.delay = v.delay = v.raw = 0; views.push(v); }
  return { ended: ended.map((e) => e.join(' ')).sort(), tries, views };
});

await section('manual', async (q, name) => {
  const jobs = await q.addBulk([0, 1, 2, 3].map((i) => ({ name: `m${i}`, data: { i } })));
  const w = worker(name, async () => 0, { autorun: false, useLocks: true });
  const got: Any[] = [];
  for (let i = 0; i < 4; i++) got.push(await w.getNextJob());
  const none = await w.getNextJob();
  const lock = await q.extendJobLock(got[0].id, got[0].token, 60_000);
  const wrong = await tried(() => q.extendJobLock(got[0].id, 'wrong', 60_000));
  const both = await w.extendJobLocks([got[0].id, got[1].id, 'nobody'], [got[0].token, got[1].token, 'x'], 60_000);
  await q.updateJobProgress(got[0].id, 42);
  const progress = (await q.getJob(got[0].id))!.progress;
  const refused = await tried(() => q.moveJobToCompleted(got[0].id, 'x', 'wrong'));
  await q.moveJobToCompleted(got[0].id, { done: true }, got[0].token);
  await q.moveJobToFailed(got[1].id, new Error('by hand'), got[1].token);
  await q.moveJobToDelayed(got[2].id, Date.now() + 600_000, got[2].token);
  const back = await q.moveJobToWait(got[3].id, got[3].token);
  return { names: got.map((g) => [g.name, g.data, typeof g.token]), none: none ?? null, lock, wrong, both, progress, refused, back,
    result: (await q.getJob(jobs[0].id))!.returnvalue, states: await Promise.all(jobs.map((job) => q.getJobState(job.id))) };
});

await section('logs', async (q) => {
  const job = await q.add('l', 0);
  for (let i = 0; i < 5; i++) await q.addJobLog(job.id, `line ${i}`);
  await job.log('from the job');
  const all = await q.getJobLogs(job.id);
  const part = await q.getJobLogs(job.id, 1, 2);
  await job.clearLogs(2);
  const kept = await q.getJobLogs(job.id);
  await q.clearJobLogs(job.id);
  return { all, part, kept, none: await q.getJobLogs(job.id), nobody: await q.getJobLogs('nobody') };
});

await section('finished', async (q, name) => {
  const events = new QueueEvents(name, { connection });
  open.push(() => events.close());
  await events.waitUntilReady();
  const good = await q.add('good', 1), bad = await q.add('bad', 2, { attempts: 1 }), never = await q.add('never', 3, { delay: 600_000 });
  const waits = [good.waitUntilFinished(events, 5000), tried(() => bad.waitUntilFinished(events, 5000)), tried(() => never.waitUntilFinished(events, 100))];
  worker(name, async (job: Any) => { if (job.name === 'bad') throw new Error('bad one'); return { good: true }; }, { concurrency: 1 });
  const first = await Promise.all(waits);
  return { first, late: [await q.waitJobUntilFinished(good.id, events, 1000), await tried(() => q.waitJobUntilFinished(bad.id, events, 300))] };
});

await section('batch', async (q, name) => {
  await q.addBulk(Array.from({ length: 10 }, (_, i) => ({ name: 'b', data: i, opts: { attempts: 1 } })));
  const sizes: number[] = [];
  const w = worker(name, async (job: Any) => {
    const batch = job.getBatch();
    sizes.push(batch.length);
    for (const member of batch) if (member.data === 3) member.setAsFailed(new Error('three'));
    return batch.length;
  }, { concurrency: 1, batch: { size: 5 } });
  const ended = await ends(w, 10);
  return { sizes, failed: ended.filter((e) => e[0] === 'failed'), counts: await q.getJobCountsAsync() };
});

await section('close', async (q, name) => {
  await q.addBulk([1, 2, 3].map((i) => ({ name: 'c', data: i })));
  let entered: Any, release: Any;
  const begun = new Promise((r) => { entered = r; });
  const held = new Promise((r) => { release = r; });
  const w = worker(name, async (job: Any) => { entered(job); await held; return 'done'; }, { concurrency: 1, batchSize: 3 });
  const job: Any = await begun;
  const closing = w.close();
  release();
  await closing;
  await until(async () => (await q.getActiveCount()) === 0);
  return { first: await q.getJobState(job.id), counts: await q.getJobCountsAsync(), closed: w.isClosed() };
});

// --- dead letters --------------------------------------------------------------------------------

await section('dlq', async (q, name) => {
  await q.addBulk([1, 2, 3, 4, 5].map((i) => ({ name: 'd', data: i, opts: { attempts: i === 5 ? 1 : 2, backoff: 1 } })));
  const w = worker(name, async (job: Any) => { throw i(job) ? new UnrecoverableError('five') : new Error(`broken ${job.data}`); }, { concurrency: 1 });
  const i = (job: Any) => job.data === 5;
  await ends(w, 9);
  await w.close();
  const letters = await q.getDlqAsync();
  const slim = (entries: Any[]) => entries.map((e) => ({ ...e, job: [e.job.name, e.job.data, e.job.attemptsMade, e.job.failedReason],
    attempts: e.attempts.map((a: Any) => ({ ...a, duration: 0 })) })).sort((a, b) => a.job[1] - b.job[1]);
  const config = await q.getDlqConfigAsync();
  await q.setDlqConfigAsync({ autoRetry: false, maxAge: 1000_000, maxEntries: 50, maxAutoRetries: 2, autoRetryInterval: 5000 });
  const view = { letters: slim(letters), stats: await q.getDlqStatsAsync(), config, changed: await q.getDlqConfigAsync(),
    jobs: (await q.getDlqJobsAsync(2)).length, failed: (await q.getFailedAsync()).length,
    reason: (await q.getDlqAsync({ reason: 'max_attempts_exceeded', limit: 2 })).length, none: await q.getDlqAsync({ reason: 'timeout' }) };
  const id = letters[0].job.id;
  const one = await q.retryDlqAsync(id);
  const state = await q.getJobState(id);
  const removed = [await q.removeDlqJobAsync(letters[1].job.id), await q.removeDlqJobAsync('nobody')];
  const filtered = await q.retryDlqByFilterAsync({ limit: 1 } as Any);
  await q.retryJobs({ state: 'failed', count: 1 });
  const counts = await q.getJobCountsAsync();
  const purged = await q.purgeDlqAsync();
  return { ...view, one, state, removed, filtered, counts, purged, after: await q.getDlqStatsAsync() };
});

await section('redo', async (q, name) => {
  const jobs = await q.addBulk([1, 2, 3].map((i) => ({ name: 'r', data: i })));
  const w = worker(name, async (job: Any) => job.data, { concurrency: 1 });
  await ends(w, 3);
  await w.close();
  const one = await q.retryCompletedAsync(jobs[0].id);
  const none = await q.retryCompletedAsync('nobody');
  const rest = await q.retryCompletedAsync();
  return { one, none, rest, counts: await q.getJobCountsAsync(), value: (await q.getJob(jobs[0].id))!.returnvalue ?? 'none' };
});

await section('stall', async (q) => {
  const before = await q.getStallConfigAsync();
  await q.setStallConfigAsync({ stallInterval: 5000, maxStalls: 2, gracePeriod: 100 });
  const changed = await q.getStallConfigAsync();
  await q.setStallConfigAsync({ enabled: false });
  return { before, changed, off: await q.getStallConfigAsync() };
});

// --- limits and groups ---------------------------------------------------------------------------

await section('limits', async (q, name) => {
  const before = [await q.getGlobalConcurrency(), await q.getGlobalRateLimit(), await q.getRateLimitTtl(), await q.isMaxed()];
  await q.setGlobalConcurrencyAsync(2);
  await q.setGlobalRateLimitAsync(5, 60_000);
  const set = [await q.getGlobalConcurrency(), await q.getGlobalRateLimit(), await q.getRateLimitTtl(), await q.isMaxed()];
  await q.addBulk(Array.from({ length: 10 }, (_, i) => ({ name: 'l', data: i })));
  let now = 0, most = 0;
  const w = worker(name, async () => { most = Math.max(most, ++now); await sleep(5); now--; }, { concurrency: 10 });
  await ends(w, 5);
  await sleep(100);
  const counts = await q.getJobCountsAsync();
  const ttl = await q.getRateLimitTtl();
  await q.removeGlobalConcurrencyAsync();
  await q.removeGlobalRateLimitAsync();
  await until(async () => (await q.getCompletedCount()) === 10);
  return { before, set, most: most <= 2, counts, ttl: ttl > 0 && ttl <= 60_000, after: [await q.getGlobalConcurrency(), await q.getGlobalRateLimit()] };
});

await section('throttle', async (q, name) => {
  await q.rateLimit(60_000);
  const limit = await q.getGlobalRateLimit();
  const refused = [await tried(() => q.rateLimit(0)), await tried(() => q.rateLimit(Infinity))];
  await q.addBulk([1, 2, 3].map((i) => ({ name: 't', data: i })));
  const ran: Any[] = [];
  const w = worker(name, async (job: Any) => { ran.push(job.data); }, { concurrency: 3, batchSize: 3 });
  await until(() => ran.length === 1);
  await sleep(100);
  const held = [ran.length, await q.getWaitingCount(), await q.isMaxed()];
  await q.removeGlobalRateLimitAsync();
  await until(() => ran.length === 3);
  return { limit, refused, held, ran: ran.sort(), info: w.isRateLimited() };
});

await section('group-throttle', async (q, name) => {
  await q.addBulk([1, 2, 3].map((i) => ({ name: 'g', data: i, opts: { attempts: 1, group: { id: i === 3 ? 'b' : 'a' } } })));
  const ran: Any[] = [];
  let limited = false;
  const w: Any = worker(name, async (job: Any) => {
    if (!limited) { limited = true; await w.rateLimitGroup(job, 60_000); throw new RateLimitError(); }
    ran.push([job.data, job.attemptsMade]);
  }, { concurrency: 1, batchSize: 1, group: { limit: { max: 10, duration: 1000 } } });
  await until(() => ran.length === 1);
  await sleep(100);
  const ttl = await q.getGroupRateLimitTtl('a');
  return { ran, ttl: ttl > 0 && ttl <= 60_000, left: await q.getGroupJobsCount('a'), none: await tried(() => w.rateLimitGroup({ opts: {} }, 5)) };
});

await section('to-children', async (q, name) => {
  await q.add('p', 1);
  const w = worker(name, async () => 0, { autorun: false });
  const job: Any = await w.getNextJob();
  return { moved: await tried(() => q.moveJobToWaitingChildren(job.id, job.token)), nobody: await tried(() => q.moveJobToWaitingChildren('nobody', 'x')),
    dependencies: await q.getJobDependencies(job.id), count: await q.getJobDependenciesCount(job.id) };
});

await section('groups', async (q, name) => {
  await q.addBulk(Array.from({ length: 9 }, (_, i) => ({ name: 'g', data: i, opts: { group: { id: `g${i % 3}`, priority: 9 - i } } })));
  await q.add('full', 0, { group: { id: 'small', maxSize: 1 } });
  const full = await tried(() => q.add('full', 1, { group: { id: 'small', maxSize: 1 } }));
  const counts = [await q.getGroupJobsCount('g0'), await q.getGroupsJobsCount(), await q.getGroupActiveCount('g0'), await q.getGroupJobsCount('nobody')];
  await q.setGroupRateLimit('g0', 1, 60_000);
  await q.setGroupConcurrency('g1', 1);
  const set = [await q.getGroupRateLimit('g0'), await q.getGroupConcurrency('g1'), await q.getGroupRateLimitTtl('g0'),
    await q.getGroupRateLimit('nobody'), await q.getGroupConcurrency('nobody')];
  const jobs = (await q.getGroupJobs('g1')).map((job) => job.data);
  const per = await q.getCountsPerPriorityForGroup('g1');
  const paused = [await q.pauseGroup('g2'), await q.pauseGroup('g2'), await q.isGroupPaused('g2'), await q.isGroupPaused('g0')];
  const order: Any[] = [];
  const w = worker(name, async (job: Any) => { order.push(job.data); }, { concurrency: 1, batchSize: 1, group: { concurrency: 5, limit: { max: 100, duration: 60_000 } } });
  await until(() => order.length === 5);
  await sleep(100);
  const first = [...order];
  const left = [await q.getGroupJobsCount('g0'), await q.getGroupJobsCount('g1'), await q.getGroupJobsCount('g2')];
  const resumed = [await q.resumeGroup('g2'), await q.resumeGroup('g2')];
  const removed = [await q.removeGroupRateLimit('g0'), await q.removeGroupRateLimit('g0'), await q.removeGroupConcurrency('g1'), await q.removeGroupConcurrency('g1')];
  await until(() => order.length === 10);
  return { full, counts, set, jobs, per, paused, first: first.sort(), left, resumed, removed, all: order.sort(), active: w.isRunning() };
});

await section('dedup', async (q) => {
  const a = await q.add('d', 1, { deduplication: { id: 'k' } });
  const b = await q.add('d', 2, { deduplication: { id: 'k' } });
  const holder = await q.getDeduplicationJobId('k');
  const c = await q.add('d', 3, { deduplication: { id: 'k', replace: true, ttl: 60_000 } });
  const kept = [(await q.getJob(a.id)) === null, (await q.getJob(c.id))?.data];
  const removed = [await q.removeDeduplicationKey('k'), await q.removeDeduplicationKey('k')];
  const d = await q.add('d', 4, { deduplication: { id: 'k', ttl: 60_000, extend: true } });
  const e = await q.add('d', 5, { deduplication: { id: 'k', ttl: 60_000, extend: true } });
  const own = [await d.removeDeduplicationKey(), await d.removeDeduplicationKey()];
  const f = await q.add('d', 6, { deduplication: { id: 'k' } });
  return { same: [a.id === b.id, b.id === c.id, c.id === d.id, d.id === e.id, e.id === f.id], holder: holder === a.id, kept, removed, own,
    none: await q.getDeduplicationJobId('other'), view: jobView(await q.getJob(d.id)), counts: await q.getJobCountsAsync() };
});

// --- schedules -----------------------------------------------------------------------------------

await section('schedules', async (q, name) => {
  const id = (s: string) => `${run}-${s}`;
  const made = [
    await q.upsertJobScheduler(id('hourly'), { pattern: '0 * * * *', timezone: 'Europe/Rome' }, { name: 'tick', data: { x: 1 }, opts: { priority: 3, attempts: 2 } }),
    await q.upsertJobScheduler(id('now'), { every: 3_600_000, immediately: true }, { name: 'now' }),
  ];
  const bad = [await tried(() => q.upsertJobScheduler(id('bad'), { pattern: 'nonsense' })).then((e: Any) => /Invalid cron expression/.test(e?.message ?? '') || e),
    await tried(() => q.upsertJobScheduler(id('bad'), {})), await tried(() => q.upsertJobScheduler(id('bad'), { every: -5 }))];
  const list = (await q.getJobSchedulers()).sort((a, b) => (a.id < b.id ? -1 : 1));
  const count = await q.getJobSchedulersCount();
  // Only now: it is soon over.
  made.push(await q.upsertJobScheduler(id('often'), { every: 40, limit: 3, preventOverlap: false }, { name: 'often', data: [1] }));
  const ran: string[] = [];
  const w = worker(name, async (job: Any) => { ran.push(job.name); }, { concurrency: 1 });
  await until(() => ran.length >= 4);
  await until(async () => (await q.getJobScheduler(id('often'))) === null);
  const again = await q.upsertJobScheduler(id('hourly'), { every: 7_200_000 }, { name: 'tock', data: 2 });
  const removed = [await q.removeJobScheduler(id('hourly')), await q.removeJobScheduler(id('now')), await tried(() => q.removeJobScheduler('nobody'))];
  return { made, bad, list, count, ran: ran.sort(), again, removed, missing: await q.getJobScheduler('nobody'), after: await q.getJobSchedulersCount(), run: w.isRunning() };
});

await section('repeat', async (q, name) => {
  const job = await q.add('r', { v: 1 }, { repeat: { every: 20, limit: 3 } });
  const ran: Any[] = [];
  const w = worker(name, async (j: Any) => { ran.push([j.name, j.data]); }, { concurrency: 1 });
  await until(() => ran.length === 3);
  await sleep(100);
  return { ran, id: typeof job.id, counts: await q.getJobCountsAsync(), run: w.isRunning() };
});

// --- flows ---------------------------------------------------------------------------------------

const tree = (node: Any): Any => node && { name: node.job.name, queue: node.job.queueName, data: node.job.data, children: node.children?.map(tree) };

await section('flow', async (q, name) => {
  const flow = new FlowProducer({ connection });
  open.push(() => flow.close());
  await flow.waitUntilReady();
  const added = await flow.add({ name: 'top', queueName: name, data: { top: 1 }, opts: { jobId: `${run}-top` }, children: [
    { name: 'left', queueName: name, data: { left: 1 } },
    { name: 'right', queueName: name, data: { right: 1 }, children: [{ name: 'leaf', queueName: name, data: { leaf: 1 } }] },
  ] });
  const top = added.job.id;
  const shape = tree(added);
  const states = await Promise.all([added, ...added.children!, added.children![1].children![0]].map((n) => n.job.getState()));
  const counts = await q.getJobCountsAsync();
  const found = tree(await flow.getFlow({ id: top, queueName: name }));
  const shallow = tree(await flow.getFlow({ id: top, queueName: name, depth: 1 }));
  const nobody = await tried(() => flow.getFlow({ id: 'nobody', queueName: name }));
  const deps = [await added.job.getDependencies(), await added.job.getDependenciesCount(), await q.getJobDependenciesCount(top), await q.getDependencies(top, 'unprocessed')];
  const again = await tried(() => flow.add({ name: 'top', queueName: name, data: {}, opts: { jobId: `${run}-top` } }));
  const order: string[] = [];
  let values: Any;
  const w = worker(name, async (job: Any) => {
    order.push(job.name);
    if (job.name === 'top') values = Object.values(await job.getChildrenValues()).sort();
    return `${job.name} done`;
  }, { concurrency: 1, batchSize: 1 });
  await ends(w, 4);
  return { shape, states, counts, found, shallow, nobody, deps, again, first: order.slice(-2), values,
    children: Object.values(await q.getChildrenValues(top)).sort(), after: [await added.job.getDependencies(), await added.job.getDependenciesCount()],
    view: jobView(await q.getJob(added.children![0].job.id)) };
});

await section('flow-failures', async (q, name) => {
  const flow = new FlowProducer({ connection });
  open.push(() => flow.close());
  const policies = ['failParentOnFailure', 'ignoreDependencyOnFailure', 'removeDependencyOnFailure', 'continueParentOnFailure', 'none'];
  const parents: Any = {};
  for (const policy of policies) {
    const node = await flow.add({ name: `p-${policy}`, queueName: `${name}-p`, data: {}, children: [
      { name: `k-${policy}`, queueName: name, data: {}, opts: { attempts: 1, ...(policy === 'none' ? {} : { [policy]: true }) } }] });
    parents[policy] = node;
  }
  const w = worker(name, async (job: Any) => { throw new Error(`${job.name} broke`); }, { concurrency: 1 });
  await ends(w, 5);
  await sleep(100);
  const seen: Any = {};
  for (const policy of policies) {
    const job: Any = parents[policy].job;
    seen[policy] = { state: await job.getState(), failed: await job.getFailedChildrenValues(), ignored: await job.getIgnoredChildrenFailures(),
      values: await job.getChildrenValues(), reason: await (new Queue(`${name}-p`, { connection })).getJobState(job.id), count: await tried(() => job.getDependenciesCount()) };
  }
  const kid: Any = parents.none.children[0].job;
  seen.unlink = await tried(() => kid.removeChildDependency());
  const node = await flow.add({ name: 'p', queueName: `${name}-q`, data: {}, children: [{ name: 'k', queueName: `${name}-q`, data: {}, opts: { delay: 600_000 } }] });
  await node.job.removeUnprocessedChildren();
  seen.kid = await node.children![0].job.getState();
  return seen;
});

await section('chains', async (q, name) => {
  const flow = new FlowProducer({ connection });
  open.push(() => flow.close());
  const chain = await flow.addChain([1, 2, 3].map((i) => ({ name: `c${i}`, queueName: name, data: { i } })));
  const fan = await flow.addBulkThen([1, 2].map((i) => ({ name: `p${i}`, queueName: name, data: { i } })), { name: 'then', queueName: name, data: {} });
  const root = await flow.addTree({ name: 'root', queueName: name, data: {}, children: [{ name: 'twig', queueName: name, data: {} }] });
  const bulk = await flow.addBulk([{ name: 'b1', queueName: name, data: {} }, { name: 'b2', queueName: name, data: {}, children: [{ name: 'b3', queueName: name, data: {} }] }]);
  const counts = await q.getJobCountsAsync();
  const order: string[] = [];
  const w = worker(name, async (job: Any) => { order.push(job.name); return { of: job.name }; }, { concurrency: 1, batchSize: 1 });
  await ends(w, 11);
  const at = (n: string) => order.indexOf(n);
  return { ids: [chain.jobIds.length, fan.parallelIds.length, root.jobIds.length], bulk: bulk.map(tree), counts,
    inOrder: [at('c1') < at('c2') && at('c2') < at('c3'), at('then') > at('p1') && at('then') > at('p2'), at('b3') < at('b2')],
    tree: at('root') < at('twig'), result: await flow.getParentResult(chain.jobIds[0]), results: [...(await flow.getParentResults([chain.jobIds[0], chain.jobIds[1], 'nobody'])).values()] };
});

await section('parent', async (q, name) => {
  const parent = await q.add('parent', {}, { delay: 600_000 });
  const child = await q.add('child', { c: 1 }, { parent: { id: parent.id, queue: name } });
  return { parent: jobView(await q.getJob(parent.id)), child: jobView(await q.getJob(child.id)), state: await parent.getState() };
});

// --- events --------------------------------------------------------------------------------------

await section('events', async (q, name) => {
  const told: Any[] = [];
  const events = new QueueEvents(name, { connection });
  open.push(() => events.close());
  for (const kind of ['waiting', 'active', 'completed', 'failed', 'progress', 'stalled', 'removed', 'delayed', 'duplicated', 'retried',
    'waiting-children', 'drained', 'paused', 'resumed'] as const) (events as Any).on(kind, (data: Any) => told.push([kind, data]));
  await events.waitUntilReady();
  const good = await q.add('good', { n: 1 });
  await q.add('dup', 1, { deduplication: { id: 'k' } });
  await q.add('dup', 2, { deduplication: { id: 'k' } });
  await (await q.add('gone', 3, { delay: 1000_000 })).remove();
  await q.pauseAsync();
  await q.resumeAsync();
  await q.add('bad', { n: 2 }, { attempts: 2, backoff: 1 });
  const tries: Record<string, number> = {};
  const w = worker(name, async (job: Any) => {
    tries[job.name] = (tries[job.name] ?? 0) + 1;
    if (job.name === 'bad') throw new Error('broke');
    if (job.name === 'good') { await job.updateProgress(30, 'a third'); }
    if (job.name === 'later' && tries.later === 1) { await job.moveToDelayed(Date.now() + 20, job.token); throw new DelayedError(); }
    return { ok: job.name };
  }, { concurrency: 1, batchSize: 1 });
  await ends(w, 4);
  await q.add('later', { n: 3 });
  await until(() => told.filter(([kind]) => kind === 'completed').length === 3);
  await w.close();
  // In the order of each job; between jobs the reference promises none.
  const by: Record<string, Any[]> = {};
  for (const [kind, data] of told) {
    if (data.delay !== undefined) data.delay = typeof data.delay;
    const { jobId, ...rest } = data;
    (by[jobId ?? ''] ??= []).push([kind, rest]);
  }
  return { told: Object.values(by).map((list) => JSON.stringify(list)).sort(), good: good.id in by };
});

await section('metrics', async (q, name) => {
  await q.addBulk([1, 2, 3].map((i) => ({ name: 'm', data: i, opts: { attempts: 1 } })));
  const w = worker(name, async (job: Any) => { if (job.data === 3) throw new Error('x'); }, { concurrency: 1 });
  await ends(w, 3);
  const view = (m: Any) => ({ count: m.meta.count, minutes: m.count, data: m.data.reduce((a: number, b: number) => a + b, 0) });
  return { completed: view(await q.getMetrics('completed')), failed: view(await q.getMetrics('failed')), part: (await q.getMetrics('completed', 0, 0)).data.length,
    trimmed: (await q.trimEvents(2)) > 0, again: await q.trimEvents(2), workers: await q.getWorkersCount() };
});

// --- what is built on it -------------------------------------------------------------------------

await section('group-of-queues', async () => {
  const group = new QueueGroup(`${run}-space`);
  const a = group.getQueue<Any>('a', { connection }), b = group.getQueue<Any>('b', { connection });
  await a.add('x', 1);
  await b.add('y', 2);
  await group.pauseAllAsync();
  const paused = [await a.isPausedAsync(), await b.isPausedAsync()];
  await group.resumeAllAsync();
  const drained = await group.drainAllAsync();
  const listed = (await group.listQueuesAsync()).sort();
  await group.obliterateAllAsync();
  a.close();
  b.close();
  return { paused, drained, listed };
});

await section('simple', async (_q, name) => {
  const app = new Bunqueue<Any, Any>(name, { connection, embedded: false, routes: { double: async (job: Any) => job.data * 2, broken: async () => { throw new Error('no'); } },
    concurrency: 2 } as Any);
  open.push(() => app.close(true));
  const results: Any[] = [];
  app.on('completed', (job, result) => results.push([job.name, result]));
  app.on('failed', (job, error) => results.push([job.name, error.message]));
  app.on('error', () => undefined);
  await app.addBulk([{ name: 'double', data: 4 }, { name: 'broken', data: 0, opts: { attempts: 1 } }, { name: 'nowhere', data: 0, opts: { attempts: 1 } }]);
  await until(() => results.length === 3);
  await app.every(`${name}-every`, 3_600_000, 1);
  await app.cron(`${name}-cron`, '0 0 * * *', 2);
  const crons = (await app.listCrons()).map((c) => c.id).sort();
  return { results: results.map((r) => r.join(' ')).sort(), counts: await app.getJobCountsAsync(), crons,
    removed: [await app.removeCron(`${name}-every`), await app.removeCron(`${name}-cron`)], dlq: (await app.getDlqAsync()).length };
});

await section('forward', async (q, name) => {
  await q.addBulk([1, 2, 3].map((i) => ({ name: 'f', data: { i }, opts: { priority: i } })));
  const forwarder = q.forward({ to: connection, queue: `${name}-far`, durable: true });
  open.push(() => forwarder.close());
  const far = new Queue<Any>(`${name}-far`, { connection });
  await until(async () => (await far.getJobCountsAsync()).prioritized === 3);
  await until(async () => (await q.getJobCountsAsync()).completed === 3);
  const jobs = (await far.getPrioritized()).map((job) => [job.name, job.data, job.priority, job.id.startsWith('fwd:')]);
  far.close();
  return { jobs: jobs.sort((a: Any, b: Any) => a[2] - b[2]), here: await q.getJobCountsAsync() };
});

process.stdout.write(JSON.stringify(out) + '\n');
process.exit(0);
