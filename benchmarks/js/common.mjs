// What the scripts for the peers share. The folder of their node_modules is in QCORE_BENCH_NODE.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';

const folder = process.env.QCORE_BENCH_NODE;

/** The CommonJS exports of an installed package. */
export const installed = createRequire(join(folder, 'package.json'));

/** A module of bunqueue, by its place in the package's dist folder. */
export const bunqueue = (place) => import(pathToFileURL(join(folder, 'node_modules/bunqueue/dist', place)).href);

/** Command line options: name and default, all strings; numbers are read from their defaults' type. */
export function options(defaults) {
  const { values } = parseArgs({
    options: Object.fromEntries(Object.keys(defaults).map((name) => [name, { type: 'string' }])),
  });
  return Object.fromEntries(Object.entries(defaults).map(([name, value]) =>
    [name, typeof value === 'number' ? Number(values[name] ?? value) : values[name] ?? value]));
}

/** The one line that a sample ends with. */
export const report = (ok, figures) => process.stdout.write(JSON.stringify({ ok: Boolean(ok), ...figures }) + '\n');

export const perSecond = (n, ms) => Math.round((1000 * n) / ms);
export const epochMs = () => performance.timeOrigin + performance.now();
export const pause = (ms) => new Promise((wake) => setTimeout(wake, ms));

function statusMiB(field) {
  const line = readFileSync('/proc/self/status', 'utf8').split('\n').find((x) => x.startsWith(`${field}:`));
  return Number(line.split(/\s+/)[1]) / 1024;
}
export const residentMiB = () => statusMiB('VmRSS');
export const peakMiB = () => statusMiB('VmHWM');

/** Ticks off the numbers 0..n-1. */
export class Ticks {
  constructor(n) {
    this.seen = new Uint8Array(n);
    this.once = 0;
    this.wrong = 0;
  }
  tick(i) {
    if (!(i >= 0 && i < this.seen.length) || this.seen[i]) this.wrong++;
    else {
      this.seen[i] = 1;
      this.once++;
    }
  }
  get complete() {
    return this.once === this.seen.length && this.wrong === 0;
  }
}

/** One process of a drain: says "ready", starts on a line, tells its progress, ends on a line with a report. */
export async function serveDrain({ ready, start, progress, finish }) {
  const say = (line) => process.stdout.write(line + '\n');
  let tail = '';
  const arrived = [], asked = [];
  process.stdin.on('data', (chunk) => {
    const lines = (tail + chunk).split('\n');
    tail = lines.pop();
    for (const line of lines) (asked.shift() ?? ((x) => arrived.push(x)))(line);
  });
  const line = () => new Promise((got) => (arrived.length ? got(arrived.shift()) : asked.push(got)));
  await ready();
  say('ready');
  await line();
  const cpu = process.cpuUsage();
  const started = epochMs();
  start();
  let told = 0;
  const teller = setInterval(() => {
    const { done } = progress();
    if (done !== told) say(`done ${(told = done)}`);
  }, 10);
  await line();
  clearInterval(teller);
  const { user, system } = process.cpuUsage(cpu);
  await new Promise((written) => process.stdout.write(
    JSON.stringify({ started, cpu_ms: (user + system) / 1000, ...progress() }) + '\n', written));
  await finish();
  process.exit(0);
}
