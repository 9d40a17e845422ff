#!/usr/bin/env node
// test/clients/hostile.mjs: values that nobody should send, through every call of clients/node: those of
// test/hostile/values.json, and those that only JavaScript has. Prints TAP. Needs a database with the extension, by
// PGHOST and so on.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { test } from 'node:test';
import {
  cancel, info, JobError, OjsError, push, pushMany, waitResult, Worker,
} from '../../clients/node/index.js';

const pg = createRequire(new URL('../../clients/node/package.json', import.meta.url))('pg');
const pool = new pg.Pool();
test.after(() => pool.end());

const fromJson = JSON.parse(readFileSync(new URL('../hostile/values.json', import.meta.url))).values
  .map(({ name, json, repeat }) => [name, json ?? repeat.map(([text, times]) => text.repeat(times)).join('')])
  .map(([name, text]) => [name, /^-?(NaN|Infinity)$/.test(text) ? Number(text) : JSON.parse(text)]);

const cyclic = { status: 422 };
cyclic.request = { response: cyclic };
const THROWN = 'a getter that throws';
const throwing = () => {
  throw new Error(THROWN);
};
const refuses = new Proxy({}, Object.fromEntries(
  ['get', 'has', 'ownKeys', 'getPrototypeOf', 'getOwnPropertyDescriptor'].map((trap) => [trap, throwing])));
const hiding = new Error('never seen');
assert.ok(hiding.stack); // V8 writes it with the first look
for (const name of ['message', 'name', 'stack', 'code', 'cause']) {
  Object.defineProperty(hiding, name, { get: throwing });
}
const chain = new Error('first', { cause: new Error('second') });
chain.cause.cause = chain;
const mute = { toString: throwing, toJSON: throwing, [Symbol.toPrimitive]: throwing };
const ofJavaScript = [
  ['undefined', undefined], ['a BigInt', 10n], ['a symbol', Symbol('s')], ['a function', () => 1],
  ['cyclic', cyclic], ['a BigInt inside', { n: 1n }], ['no prototype', Object.create(null)],
  ['a getter that throws', Object.defineProperty({}, 'x', { get: throwing, enumerable: true })],
  ['a proxy that refuses', refuses], ['toJSON of nothing', { toJSON() {} }], ['mute', mute],
  ['an invalid date', new Date(NaN)], ['NaN inside', [1, NaN]], ['a sparse array', new Array(50)],
  ['an error whose getters throw', hiding], ['a cyclic chain of causes', chain],
  ['errors of many', new AggregateError([chain, hiding, cyclic, 1n, null], 'many')],
  ['an error with a NUL', Object.assign(new Error('a\0b'), { name: 'c\0d', stack: 'e\n    at f\0 (g)' })],
  ['half a pair inside', { text: 'a\ud800' }], ['half a pair as a key', { '\udc00': 1 }],
];
const values = [...fromJson, ...ofJavaScript];

let run = 0;
// Works all jobs of a queue, one at a time: a slot that is lost would be seen. Returns the jobs as they ended.
async function work(name, cases, tries = 3) {
  const queue = `hostile-${name}-${Date.now()}-${run++}`;
  const ids = [];
  for (let i = 0; i < cases.length; i++) {
    const retry = { max_attempts: tries, initial_interval: 'PT0.01S' };
    const { id } = await push(pool, 'h.case', [i], { queue, retry });
    ids.push(id);
  }
  const runs = [];
  const worker = new Worker({
    queues: [queue], concurrency: 1, signals: [], log: false, lease: '30 s', poll: 0.05,
    handlers: { 'h.case': (job) => {
      runs[job.args[0]] = (runs[job.args[0]] ?? 0) + 1;
      return cases[job.args[0]](job);
    } },
  });
  const ended = worker.run();
  const stuck = setTimeout(() => worker.stop(0), 60_000);
  const open = 'select count(*)::int as n from ojs.jobs where queue = $1 and completed_at is null';
  for (const end = Date.now() + 60_000; Date.now() < end && (await pool.query(open, [queue])).rows[0].n > 0;) {
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  await worker.stop(0);
  await ended;
  clearTimeout(stuck);
  const jobs = await Promise.all(ids.map((id) => info(pool, id)));
  return jobs.map((job, i) => ({ ...job, runs: runs[i] ?? 0, last: job.errors?.at(-1) }));
}

const inError = (place) => ([name, value]) => [`${name} as ${place}`, () => {
  throw new JobError('card declined', { type: 'card.declined', retryable: false, [place]: value });
}];

for (const place of ['details', 'delay', 'cause']) {
  test(`a permanent failure ends its job at once, whatever its ${place}`, async () => {
    const cases = values.map(inError(place));
    const jobs = await work(place, cases.map(([, act]) => act));
    assert.deepEqual(
      jobs.map(({ state, runs, last }, i) => [cases[i][0], state, runs, last?.type, last?.message])
        .filter(([, state, runs, type, message]) => `${state} ${runs} ${type} ${message}` !==
          'discarded 1 card.declined card declined'), []);
  });
}

test('a permanent failure ends its job at once, whatever its message and type', async () => {
  const cases = values.flatMap(([name, value]) => [
    [`${name} as a message`, () => {
      throw new JobError(value, { retryable: false });
    }],
    [`${name} as a type`, () => {
      throw new JobError('declined', { type: value, retryable: false });
    }],
    [`${name} as a stack`, () => {
      throw Object.assign(new JobError('declined', { retryable: false }), { stack: value });
    }],
  ]);
  const jobs = await work('text', cases.map(([, act]) => act));
  assert.deepEqual(jobs.map(({ state, runs, last }, i) => [cases[i][0], state, runs, !!(last?.type && last?.message)])
    .filter(([, state, runs, told]) => state !== 'discarded' || runs !== 1 || !told), []);
});

test('whatever is thrown, or is said of trying again, fails the attempt with a type and a message', async () => {
  const cases = values.flatMap(([name, value]) => [
    [`${name} is thrown`, () => {
      throw value;
    }],
    [`${name} as retryable`, () => {
      throw new JobError('declined', { retryable: value });
    }],
  ]);
  const jobs = await work('thrown', cases.map(([, act]) => act), 1);
  assert.deepEqual(jobs.map(({ state, last, runs }, i) => [cases[i][0], state, runs, last?.type])
    .filter(([, state, runs, type]) => state !== 'discarded' || runs < 1 || !type || /visibility|timeout/.test(type)),
  []);
});

test('a result is stored, or fails the attempt', async () => {
  const calls = {
    result: (value) => () => value,
    complete: (value) => async (job) => {
      await job.complete(pool, value);
    },
    transaction: (value) => (job) => job.transaction(async () => value),
    checkpoint: (value) => async (job) => {
      await job.saveCheckpoint(value);
      throw new JobError('saved', { retryable: false });
    },
    progress: (value) => async (job) => {
      await job.progress(0.5, 'half', value);
    },
    'progress itself': (value) => async (job) => {
      await job.progress(value);
    },
    release: (value) => async (job) => {
      if (job.deliveries > 1) return;
      await job.release(value ?? 'soon');
      throw new JobError('given back', { retryable: false });
    },
  };
  for (const [call, act] of Object.entries(calls)) {
    const some = call === 'release' ? ofJavaScript : values;
    const jobs = await work('result', some.map(([, value]) => act(value)), 1);
    assert.deepEqual(jobs.map(({ state, last }, i) => [call, some[i][0], state, last?.type])
      .filter(([, , state, type]) => !['completed', 'discarded'].includes(state) || /visibility|timeout/.test(type)),
    []);
  }
});

// Resolves to what a call did: refused it in words (with the value's own error, too), or did it.
async function outcome(call) {
  try {
    await call();
    return 'done';
  } catch (error) {
    const inWords = [OjsError, TypeError, RangeError].some((it) => error instanceof it);
    if (inWords || error?.message === THROWN) return 'refused';
    return `${error?.name} ${error?.code} ${error?.message}`;
  }
}

test('a push stores the job as given, or refuses it in words and stores nothing', async () => {
  const all = "select count(*)::int as n from ojs.jobs where type = 'h.push'";
  const count = async () => (await pool.query(all)).rows[0].n;
  const places = {
    args: (value) => push(pool, 'h.push', value),
    argument: (value) => push(pool, 'h.push', [value]),
    options: (value) => push(pool, 'h.push', [], value),
    batch: (value) => pushMany(pool, value),
    'member of a batch': (value) => pushMany(pool, [{ type: 'h.push' }, value]),
    'argument in a batch': (value) => pushMany(pool, [{ type: 'h.push', args: [value] }]),
    'options of a batch': (value) => pushMany(pool, [{ type: 'h.push' }], value),
    ...Object.fromEntries(['atomicity', 'idempotency_key', 'deduplication_key', 'deduplication_ttl'].map((name) =>
      [`${name} of a batch`, (value) => pushMany(pool, [{ type: 'h.push' }], { [name]: value })])),
    ...Object.fromEntries(['queue', 'priority', 'delay', 'scheduled_at', 'expires_at', 'timeout', 'retry', 'unique',
    'meta', 'tags', 'deduplication_key', 'ordering_key', 'rate_limit', 'id', 'pending', 'options', 'max_attempts'].map(
      (name) => [name, (value) => push(pool, 'h.push', [], { [name]: value })])),
  };
  const wrong = [];
  for (const [place, call] of Object.entries(places)) {
    const before = await count();
    let done = 0;
    for (const [name, value] of values) {
      const what = await outcome(() => call(value));
      if (what === 'done') done++;
      else if (what !== 'refused') wrong.push([place, name, what]);
    }
    const stored = await count() - before;
    if (stored > done * 2) wrong.push([place, `${stored} jobs stored by ${done} calls`]);
  }
  assert.deepEqual(wrong, []);
});

test('what cannot be an argument is never stored as something else', async () => {
  for (const [name, value] of ofJavaScript) {
    if (!/NaN|date|function|symbol|BigInt|pair|cyclic$/.test(name)) continue;
    await assert.rejects(push(pool, 'h.arg', [value]), TypeError, name);
  }
  await assert.rejects(push(pool, 'h.arg', ['a\0b']), { name: 'TypeError', message: /the job .*\\u0000/ });
  const jobs = [{ type: 'h.arg' }, { type: 'h.arg', args: [1n] }];
  await assert.rejects(pushMany(pool, jobs), /^TypeError: job 1 .*BigInt/);
  for (const name of ['delay', 'scheduled_at', 'expires_at', 'timeout']) {
    for (const value of [NaN, new Date(NaN)]) {
      await assert.rejects(push(pool, 'h.arg', [], { [name]: value }), TypeError, `${name} ${value}`);
    }
  }
});

test('an id that is none is the id of no job', async () => {
  for (const [name, value] of [...values, ['an id of no job', '018f0000-0000-7000-8000-000000000000']]) {
    for (const call of [cancel, info, (db, id) => waitResult(db, id, 0)]) {
      await assert.rejects(call(pool, value), { name: 'OjsError', code: 'NOT_FOUND' }, name);
    }
  }
  const { id } = await push(pool, 'h.wait', []);
  for (const [name, value] of values) {
    if (value == null || (Number(typeof value === 'number' && value) > 0)) continue;
    assert.match(await outcome(() => waitResult(pool, id, value)), /^(refused|done)$/, name);
  }
});

test('options of any kind are refused by the worker, or it works', async () => {
  for (const option of ['handlers', 'queues', 'concurrency', 'lease', 'grace', 'poll', 'heartbeat', 'name', 'labels']) {
    for (const [name, value] of values) {
      let worker;
      try {
        worker = new Worker({ handlers: { '*': () => {} }, queues: ['hostile-none'], signals: [], log: false,
          [option]: value });
      } catch (error) {
        const refused = error instanceof TypeError || error instanceof RangeError || error.message === THROWN;
        assert.ok(refused, `${option} ${name}: ${error}`);
        continue;
      }
      const stuck = setTimeout(() => worker.stop(0), 10_000);
      const begun = Date.now();
      const what = await outcome(() => worker.run({ drain: true }));
      clearTimeout(stuck);
      assert.ok(Date.now() - begun < 9_000, `${option}: ${name}: it hangs`);
      assert.match(what, /^(done|refused)$/, `${option}: ${name}`);
    }
  }
});
