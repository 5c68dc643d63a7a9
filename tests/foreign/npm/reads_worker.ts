// One worker process of `reads.py`: counts the reads of its sockets while it drains a queue.
//
//     bun reads_worker.ts PORT QUEUE all|stalled
//
// "stalled": its subscription names the one type of event that a worker has a use for, as later releases of the
// client do by themselves.
import { Worker } from 'bunqueue/client';

const [port, queue, events] = process.argv.slice(2);
const say = (value: unknown) => process.stdout.write(JSON.stringify(value) + '\n');
let reads = 0, bytes = 0;
const connect = Bun.connect;
(Bun as any).connect = (options: any) => {
  const handlers = options.socket ?? {};
  const take = handlers.data;
  handlers.data = (socket: any, chunk: Uint8Array) => { reads++; bytes += chunk.length; return take(socket, chunk); };
  return connect(options);
};
if (events === 'stalled') {
  const { TcpClient } = await import(new URL('./node_modules/bunqueue/dist/client/tcpClient.js', import.meta.url).href);
  const send = TcpClient.prototype.send;
  TcpClient.prototype.send = function (command: any, ...more: any[]) {
    return send.call(this, command.cmd === 'SubscribeEvents' ? { ...command, eventTypes: ['stalled'] } : command, ...more);
  };
}
let done = 0, said = 0;
const worker = new Worker<any, any>(queue, async () => undefined, {
  connection: { host: '127.0.0.1', port: Number(port), pingInterval: 0 }, concurrency: 50, batchSize: 20, autorun: false,
  heartbeatInterval: 60_000 });
worker.on('completed', () => { done++; });
worker.on('error', () => undefined);
await worker.waitUntilReady();
say({ ready: true });
const lines = (async function* () { for await (const chunk of process.stdin) yield* String(chunk).split('\n').filter(Boolean); })();
await lines.next();
reads = bytes = 0;
worker.run();
const timer = setInterval(() => { if (done !== said) say({ done: (said = done) }); }, 10);
await lines.next();
clearInterval(timer);
say({ reads, bytes });
process.exit(0);
