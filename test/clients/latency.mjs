// test/clients/latency.mjs [COUNT]: from the call of push() to the handler, one job at a time, with a pause between
// two. Needs a database with the extension, by PGHOST and so on. latency.py does the same.
import { createRequire } from 'node:module';
import { setTimeout as sleep } from 'node:timers/promises';
import { push, Worker } from '../../clients/node/index.js';

const pg = createRequire(new URL('../../clients/node/package.json', import.meta.url))('pg');
const pool = new pg.Pool();
let arrived;
const worker = new Worker({ queues: ['latency'], log: false, handlers: { 'latency.job': () => arrived() } });
const stopped = worker.run();
await sleep(1000);
const times = [];
for (let i = 0; i < Number(process.argv[2] ?? 300); i++) {
  const begun = performance.now();
  const handled = new Promise((resolve) => (arrived = resolve));
  await push(pool, 'latency.job', [], { queue: 'latency' });
  await handled;
  times.push(performance.now() - begun);
  await sleep(20 + Math.random() * 20);
}
times.sort((a, b) => a - b);
const at = (share) => times[Math.floor(times.length * share)].toFixed(1);
console.log(`push to handler, ms: p50 ${at(0.5)}, p95 ${at(0.95)}, p99 ${at(0.99)}`);
await worker.stop();
await stopped;
await pool.end();
