// test/clients/worker.mjs OPTIONS: the worker that test/clients/run drives, over clients/node. worker.py does the same.
import { createRequire } from 'node:module';
import { setTimeout as sleep } from 'node:timers/promises';
import { JobError, Worker } from '../../clients/node/index.js';

const pg = createRequire(new URL('../../clients/node/package.json', import.meta.url))('pg');
const { pool, drain, ...options } = JSON.parse(process.argv[2] ?? '{}');
for (const name of ['grace', 'poll', 'heartbeat']) if (name in options) options[name] /= 1000;
const db = pool && new pg.Pool(pool);
db?.on('error', () => {});

async function until(job, ms) {
  await sleep(ms, undefined, { signal: job.signal }).catch(() => {});
}

const handlers = {
  'echo': (job) => job.args[0],
  'effect': (job) => job.transaction(async (client) => {
    await client.query('insert into effect (job_id, worker) values ($1, $2)', [job.id, worker.name]);
    if (job.args[0]) await client.query('select pg_sleep($1)', [job.args[0]]);
    return { done: true };
  }),
  'complete': async (job) => {
    const client = new pg.Client();
    await client.connect();
    await client.query('begin');
    await client.query('insert into effect (job_id, worker) values ($1, $2)', [job.id, worker.name]);
    await job.complete(client, 'by hand');
    await client.query('commit');
    await client.end();
  },
  'boom': (job) => {
    const { times = 1, plain, ...error } = job.args[0];
    if (job.attempt > times) return 'well at last';
    throw plain ? new RangeError(plain) : new JobError('boom\0', error);
  },
  'steps': async (job) => {
    if (job.attempt > 1) return job.checkpoint;
    await job.saveCheckpoint({ row: 5 });
    await job.progress(0.5, 'half', { rows: 5 });
    throw new Error('in the middle');
  },
  'snooze': (job) => (job.deliveries > 1 ? job.attempt : job.release('0.1 s')),
  'slow': async (job) => {
    await sleep(job.args[0] * 1000);
    return job.deliveries;
  },
  'wait': async (job) => {
    console.log(`waiting ${job.id}`);
    await until(job, 60_000);
    await new pg.Pool({ max: 1 }).query('insert into heard values ($1, $2)', [job.id, job.signal.reason.reason]);
    throw job.signal.reason;
  },
  'unstorable': () => 10n,
};

const worker = new Worker({ pool: db, handlers, ...options });
await worker.run({ drain });
process.exit();
