#!/usr/bin/env node
// test/clients/fedify.mjs [ROUNDS]: the queue of clients/fedify under Fedify's own tester, and what that does not ask.
// Prints TAP. Needs a database with the extension, by PGHOST and so on.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { connect, createServer } from 'node:net';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { OjsMessageQueue } from '../../clients/fedify/index.js';

const require = createRequire(new URL('../../clients/fedify/package.json', import.meta.url));
const { testMessageQueue } = require('@fedify/testing');
const { Temporal } = require('@js-temporal/polyfill');
const pg = require('pg');
const pool = new pg.Pool();
const run = `${Date.now()}`;
const queues = [];

// A queue of its own for each test.
function queueOf(name, options) {
  const queue = new OjsMessageQueue({ queue: `fedify-${name}-${run}`, ...options });
  queues.push(queue);
  return queue;
}
const jobs = async (name, columns) => (await pool.query(
  `select ${columns} from ojs.jobs where queue = $1 order by seq`, [`fedify-${name}-${run}`])).rows;

async function eventually(question) {
  const end = Date.now() + 30_000;
  while (!(await question()) && Date.now() < end) await sleep(20);
  assert.ok(await question());
}

test.after(async () => {
  await Promise.all(queues.map((queue) => queue.close()));
  await pool.end();
});

for (let round = 1; round <= Number(process.argv[2] ?? 1); round++) {
  test(`Fedify's own tester, with ordering keys (${round})`, () => testMessageQueue(
    () => queueOf(`tester-${round}`), ({ controller }) => controller.abort(), { testOrderingKey: true }));
}

test('a handler that throws is retried; the messages behind it in its key wait', async () => {
  const queue = queueOf('retry', { retry: { max_attempts: 5, initial_interval: 'PT0.2S', jitter: false }, log: false });
  const seen = [];
  const controller = new AbortController();
  const listening = queue.listen((message) => {
    seen.push(message);
    if (message === 1 && seen.filter((it) => it === 1).length < 3) throw new Error('not yet');
  }, { signal: controller.signal });
  for (const message of [0, 1, 2, 3]) await queue.enqueue(message, { orderingKey: 'https://a.example/1' });
  await eventually(() => seen.length === 6);
  controller.abort();
  await listening;
  assert.deepEqual(seen, [0, 1, 1, 1, 2, 3]);
  assert.equal(queue.nativeRetrial, true);
});

test('a key is enqueued once, of a batch too', async () => {
  const queue = queueOf('twice');
  for (let i = 0; i < 2; i++) await queue.enqueue('digest', { deduplicationKey: 'digest/1' });
  for (let i = 0; i < 2; i++) await queue.enqueueMany(['a', 'b'], { deduplicationKey: 'batch/1' });
  await queue.enqueueMany([]);
  assert.deepEqual((await jobs('twice', 'args')).map(({ args }) => args[0]), ['digest', 'a', 'b']);
  assert.equal(queue.nativeDeduplication, true);
});

test('keys are as long as Fedify likes, and messages are any JSON', async () => {
  const queue = queueOf('long');
  const long = `https://a.example/${'x'.repeat(2000)}`;
  await queue.enqueueMany([null, [], { deep: [1, 'é'] }], { orderingKey: long, deduplicationKey: long });
  await queue.enqueueMany([4], { orderingKey: long, deduplicationKey: long });
  assert.deepEqual((await jobs('long', 'args')).map(({ args }) => args), [[null], [[]], [{ deep: [1, 'é'] }]]);
});

test('delays are of any unit, and not negative', async () => {
  const queue = queueOf('delay');
  const units = [{ milliseconds: 90_500 }, { minutes: 90 }, { days: 3 }, { weeks: 1 }];
  for (const unit of [...units, { months: 1 }]) await queue.enqueue(0, { delay: Temporal.Duration.from(unit) });
  await assert.rejects(queue.enqueue(0, { delay: Temporal.Duration.from({ seconds: -1 }) }), { name: 'OjsError' });
  const found = await jobs('delay', 'extract(epoch from scheduled_at - created_at)::float8 as delay');
  const delays = found.map(({ delay }) => Math.round(delay));
  assert.deepEqual(delays.slice(0, 4), [91, 5400, 3 * 86_400, 7 * 86_400]);
  assert.ok(delays[4] >= 28 * 86_400 && delays.length === 5, delays);
});

test('the depth counts what waits, not what is being handled', async () => {
  const queue = queueOf('depth');
  assert.deepEqual(await queue.getDepth(), { queued: 0, ready: 0, delayed: 0 });
  await queue.enqueueMany([1, 2, 3], { orderingKey: 'k' });
  await queue.enqueue(4);
  await queue.enqueue(5, { delay: Temporal.Duration.from({ hours: 1 }) });
  assert.deepEqual(await queue.getDepth(), { queued: 5, ready: 2, delayed: 1 });
});

test('an abort lets handlers end, and leaves the rest to others', async () => {
  const queue = queueOf('abort', { concurrency: 1 });
  const controller = new AbortController();
  await queue.enqueueMany(['first', 'second']);
  let begun, ended;
  const listening = queue.listen(async () => {
    begun = true;
    await sleep(500);
    ended = true;
  }, { signal: controller.signal });
  await eventually(() => begun);
  controller.abort();
  await listening;
  assert.ok(ended);
  assert.deepEqual((await jobs('abort', 'state')).map(({ state }) => state), ['completed', 'available']);
  await queue.listen(() => assert.fail('aborted before'), { signal: controller.signal });
});

test('an option that is none is refused', () => {
  assert.throws(() => new OjsMessageQueue({ concurency: 5 }), /^TypeError: Worker: "concurency" .*is it concurrency\?/);
});

test('an outage makes a listener try some times, not thousands', async () => {
  let leads = true, count = 0;
  const open = new Set();
  const proxy = createServer((client) => {
    count++;
    const server = leads ? connect(`${process.env.PGHOST}/.s.PGSQL.${process.env.PGPORT ?? 5432}`) : client;
    if (!leads) return client.destroy();
    for (const [one, other] of [[client, server], [server, client]]) {
      open.add(one);
      one.on('error', () => {}).on('close', () => other.destroy()).pipe(other);
    }
  });
  await new Promise((resolve) => proxy.listen(0, '127.0.0.1', resolve));
  const queue = queueOf('outage', { connection: { host: '127.0.0.1', port: proxy.address().port }, pool, log: false });
  const seen = [];
  const controller = new AbortController();
  const listening = queue.listen((message) => void seen.push(message), { signal: controller.signal });
  await queue.enqueue('before');
  await eventually(() => seen.length === 1);
  leads = false;
  const before = count;
  for (const it of open) it.destroy();
  await sleep(5000);
  const tries = count - before;
  leads = true;
  await queue.enqueue('after');
  await eventually(() => seen.length === 2);
  controller.abort();
  await listening;
  proxy.close();
  assert.ok(tries >= 1 && tries <= 20, `${tries} connections within 5 s`);
});

test('who cannot listen says so, tries again, and ends when aborted', async () => {
  const said = [];
  const log = { debug() {}, info() {}, warn() {}, error: (fields, message) => said.push(message) };
  const queue = queueOf('nobody', { connection: { user: 'nobody_at_all' }, log });
  const controller = new AbortController();
  const listening = queue.listen(() => {}, { signal: controller.signal });
  await eventually(() => said.length > 0);
  controller.abort();
  await listening;
  assert.deepEqual(said, ['cannot listen']);
});
