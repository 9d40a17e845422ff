#!/usr/bin/env node
// test/clients/unit.mjs: what a program sees that pushes jobs over clients/node. Prints TAP. Needs a database with the
// extension, by PGHOST and so on. unit.py does the same.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { test } from 'node:test';
import { push, pushMany, cancel, info, waitResult, JobError, OjsError, Worker } from '../../clients/node/index.js';
import { ATTRIBUTES, OF_SERVER } from '../../clients/node/lib/options.js';

const require = createRequire(new URL('../../clients/node/package.json', import.meta.url));
const { context, propagation, trace } = require('@opentelemetry/api');
const { AsyncLocalStorageContextManager } = require('@opentelemetry/context-async-hooks');
const { W3CTraceContextPropagator } = require('@opentelemetry/core');
const { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } = require('@opentelemetry/sdk-trace-base');
const pg = require('pg');
const pool = new pg.Pool();
test.after(() => pool.end());

test('a push has every attribute of the specification, and answers the job', async () => {
  const job = await push(pool, 'unit.one', [{ a: [] }, 'é'], {
    queue: 'unit', priority: 7, delay: 'PT5M', timeout: 1.5, retry: { max_attempts: 9 }, meta: { locale: 'en' },
    tags: ['x', 'y'], expires_at: new Date(Date.now() + 1e7), options: { x_own: { deep: 1 } },
  });
  const stored = await info(pool, job.id);
  assert.deepEqual(
    [job.state, job.args, job.priority, stored.timeout, stored.max_attempts, stored.meta, stored.tags, stored.x_own],
    ['scheduled', [{ a: [] }, 'é'], 7, 1.5, 9, { locale: 'en' }, ['x', 'y'], { deep: 1 }]);
  assert.equal(await cancel(pool, job.id), 'cancelled');
  assert.equal(await cancel(pool, job.id), 'cancelled');
});

test('no arguments, and an empty list as an argument, arrive as they are', async () => {
  assert.deepEqual((await push(pool, 'unit.none', [], { queue: 'unit' })).args, []);
  assert.deepEqual((await push(pool, 'unit.none', [[]], { queue: 'unit' })).args, [[]]);
});

test('a push belongs to the transaction of its caller', async () => {
  const client = await pool.connect();
  await client.query('begin');
  const job = await push(client, 'unit.gone', [], { queue: 'unit' });
  await client.query('rollback');
  client.release();
  await assert.rejects(info(pool, job.id), { name: 'OjsError', code: 'NOT_FOUND' });
});

test('a batch is all or nothing, or each job for itself; its key makes it safe to send again', async () => {
  const jobs = [{ type: 'unit.many', args: [1], queue: 'unit' }, { type: 'Wrong', queue: 'unit' }];
  await assert.rejects(pushMany(pool, jobs), { code: 'INVALID_JOB_TYPE' });
  const rows = await pushMany(pool, jobs, { atomicity: 'partial', idempotency_key: 'unit-1' });
  assert.deepEqual(rows.map((row) => [row.index, row.status, row.error?.code]),
    [[0, 'created', undefined], [1, 'failed', 'INVALID_JOB_TYPE']]);
  const again = await pushMany(pool, jobs, { atomicity: 'partial', idempotency_key: 'unit-1' });
  assert.equal(again[0].id, rows[0].id);
  const batch = { deduplication_key: 'unit-batch', deduplication_ttl: '1 minute' };
  const twice = [await pushMany(pool, jobs.slice(0, 1), batch), await pushMany(pool, jobs.slice(0, 1), batch)];
  assert.deepEqual(twice.map(([row]) => row.status), ['created', 'duplicate']);
});

test('errors have the code of the specification, the SQLSTATE, details and a hint', async () => {
  const error = await push(pool, 'No Type').catch((thrown) => thrown);
  assert.ok(error instanceof OjsError && error.cause instanceof Error);
  assert.deepEqual([error.code, error.sqlstate, error.retryable, error.details.field],
    ['INVALID_JOB_TYPE', 'OJ101', false, 'type']);
  assert.match(error.hint, /segments/);
  const { id } = await push(pool, 'unit.twice', [], { queue: 'unit' });
  await assert.rejects(push(pool, 'unit.twice', [], { queue: 'unit', id }),
      { code: 'DUPLICATE_JOB', sqlstate: 'OJ301' });
  await assert.rejects(push(pool, 'unit.x', [], { max_attempts: 3, retry: { maxAttempts: 2 } }),
    { code: 'INVALID_RETRY_POLICY' });
});

test('what a worker cannot work with is refused at once', async () => {
  const handlers = { '*': () => {} };
  const wrong = [
    [{}, /^handlers must be an object/], [{ handlers: {} }, /^handlers must have one at least/],
    [{ handlers: { 'a.b': 'x' } }, /^handlers\["a.b"\] must be a function, not a string/],
    [{ handlers, queues: 'mail' }, /^queues must be an array/], [{ handlers, concurrency: 0 }, /^concurrency must be/],
    [{ handlers, queue: 'mail' }, /^Worker: "queue" is not known: is it queues\?$/],
    [{ handlers, lease: 'foo' }, /^lease must be a time, such as 30 \(seconds\), '30 s' or 'PT30S', not "foo"$/],
    [{ handlers, grace: 25_000 }, /^grace is in seconds: 25000 is more than 900. Write 25, or '25000 s'/],
    [{ handlers, poll: 5000 }, /^poll is in seconds/], [{ handlers, poll: 0 }, /^poll must be 10 ms/],
  ];
  for (const [options, message] of wrong) {
    assert.throws(() => new Worker(options), (error) => {
      assert.match(error.message, message);
      return error instanceof TypeError || error instanceof RangeError;
    });
  }
  const worker = new Worker({ handlers, queues: ['My_Queue'], signals: [], log: false });
  await assert.rejects(worker.run(), { code: 'INVALID_QUEUE' });
});

test('a misspelt option is refused, with the name that it is like; options is the way out', async () => {
  const meant = {
    scheduledAt: 'scheduled_at', maxAttempts: 'max_attempts', prioritty: 'priority', queu: 'queue', countdown: 'delay',
    attempts: 'max_attempts', 'retry-policy': undefined, runAt: 'scheduled_at',
  };
  for (const [name, known] of Object.entries(meant)) {
    const message = `"${name}" is not known${known ? `: is it ${known}?` : ''} Attributes of your own go into options.`;
    await assert.rejects(push(pool, 'unit.x', [], { [name]: 1 }), { name: 'TypeError', message: `push: ${message}` });
    const jobs = [{ type: 'unit.x' }, { type: 'unit.x', [name]: 1 }];
    await assert.rejects(pushMany(pool, jobs), { name: 'TypeError', message: `job 1: ${message}` });
  }
  assert.equal((await push(pool, 'unit.x', [], { queue: 'unit', options: { 'retry-policy': 1 } }))['retry-policy'], 1);
  const copy = await info(pool, (await push(pool, 'unit.x', [], { queue: 'unit' })).id);
  const { id, ...again } = copy; // an envelope may be pushed again
  assert.equal((await pushMany(pool, [again]))[0].status, 'created');
  await assert.rejects(pushMany(pool, [], { atomicty: 'partial' }), /is it atomicity\?/);
  assert.throws(() => new JobError('x', { retriable: false }), /^TypeError: JobError: "retriable" .*is it retryable\?/);
  await assert.rejects(push(pool, 'unit.x', [], 'mail'), /options must be an object/);
  const source = readFileSync(new URL('../../src/job/attribute_names.cpp', import.meta.url), 'utf8');
  const known = [...source.matchAll(/^ {4}{"(\w+)", Attr::/gm)].map(([, name]) => name);
  assert.ok(known.length > 70);
  assert.deepEqual([...ATTRIBUTES, ...OF_SERVER].sort(), known.sort());
});

test('a time is seconds, ISO 8601 or an interval, in every option', async () => {
  for (const time of [300, '300', '5 minutes', '5 min', '300 s', '0:05', '00:05:00', 'PT5M', '4 minutes 60 seconds']) {
    const job = await push(pool, 'unit.time', [], {
      queue: 'unit-time', delay: time, timeout: time, deduplication_key: `${time}`, deduplication_ttl: time,
      retry: { initial_interval: time, max_interval: time }, unique: { keys: ['type', 'args'], period: time },
    });
    const since = (then) => Math.round((new Date(then) - new Date(job.created_at)) / 1000);
    assert.deepEqual([since(job.scheduled_at), job.timeout, job.retry.initial_interval], [300, 300, 'PT300S'], time);
    await cancel(pool, job.id);
    const batch = { deduplication_key: `batch ${time}`, deduplication_ttl: time };
    assert.equal((await pushMany(pool, [{ type: 'unit.time', queue: 'unit-batch', delay: time }], batch)).length, 1);
  }
  const begun = Date.now();
  const { id } = await push(pool, 'unit.never', [], { queue: 'unit' });
  for (const time of [0.01, '10 ms', 'PT0.01S', '0.01']) assert.equal(await waitResult(pool, id, time), undefined);
  assert.ok(Date.now() - begun < 10_000);
  await assert.rejects(waitResult(pool, id, 'soon'), { name: 'TypeError', message: /^timeout must be a time/ });
  await assert.rejects(push(pool, 'unit.time', [], { delay: 'soon' }), { name: 'OjsError', code: 'INVALID_PAYLOAD' });
  for (const time of [30, '30 s', 'PT30S']) {
    assert.ok(new Worker({ handlers: { '*': () => {} }, lease: time, grace: time, poll: time, heartbeat: time }));
  }
});

test('db is whatever has query(), also one that answers the rows alone; anything else is refused', async () => {
  const rowsAlone = { query: async (text, values) => (await pool.query(text, values)).rows };
  const job = await push(rowsAlone, 'unit.rows', [1], { queue: 'unit' });
  assert.equal((await info(rowsAlone, job.id)).type, 'unit.rows');
  assert.equal((await pushMany(rowsAlone, [{ type: 'unit.rows', queue: 'unit' }])).length, 1);
  for (const db of ['unit.rows', undefined, null, {}, () => {}]) {
    await assert.rejects(push(db, 'unit.rows'),
      { name: 'TypeError', message: 'db must be something with query(), such as a pg Pool or Client' });
  }
});

test('what is not there, or not allowed, says what to do', async () => {
  await assert.rejects(info(pool, 'x'), { name: 'OjsError', code: 'NOT_FOUND', message: 'job "x" does not exist' });
  await assert.rejects(pushMany(pool, { type: 'a.b' }), { name: 'OjsError', code: 'INVALID_PAYLOAD' });
  await pool.query('drop role if exists unit_nobody; create role unit_nobody login');
  const nobody = new pg.Pool({ user: 'unit_nobody' });
  await assert.rejects(push(nobody, 'a.b'), { name: 'OjsError', code: 'PERMISSION_DENIED', sqlstate: '42501',
    hint: 'Grant ojs_producer to the role that connects.' });
  const worker = (options) => new Worker({ handlers: { '*': () => {} }, signals: [], log: false, ...options });
  await assert.rejects(worker({ connection: { user: 'unit_nobody' } }).run(), { name: 'OjsError',
    code: 'PERMISSION_DENIED', hint: 'Grant ojs_worker to the role that connects.' });
  await nobody.end();
  await pool.query('grant ojs_observer to unit_nobody');
  const observer = new pg.Pool({ user: 'unit_nobody' });
  await assert.rejects(push(observer, 'a.b'), { code: 'PERMISSION_DENIED', hint: /Grant ojs_producer/ });
  await observer.end();
  await pool.query('drop role unit_nobody');
  const elsewhere = new pg.Pool({ database: 'template1' });
  const none = { name: 'OjsError', code: 'UNAVAILABLE', sqlstate: '3F000', retryable: false };
  await assert.rejects(push(elsewhere, 'a.b'), { ...none,
    hint: 'Run "create extension ojs" in database "template1", or connect to another one.' });
  await elsewhere.end();
  await assert.rejects(worker({ connection: { database: 'template1' } }).run(), none);
});

test('a failure is told with its own type, its causes, and the frames of the caller', async () => {
  const { id } = await push(pool, 'unit.fails', [], { queue: 'unit-fails', retry: { max_attempts: 1 } });
  const lines = [];
  const log = { debug() {}, info() {}, error() {}, warn: (fields) => lines.push(fields) };
  await new Worker({ queues: ['unit-fails'], signals: [], log, handlers: { '*': async (job) => {
    await job.transaction(async () => {
      throw new JobError('no ink', { type: 'pdf.busy', cause: new RangeError('the tank is empty'), delay: 'soon' });
    });
  } } }).run({ drain: true });
  const [error] = (await info(pool, id)).errors;
  assert.deepEqual([error.type, error.message], ['pdf.busy', 'no ink']);
  const [first, ...rest] = error.backtrace;
  assert.match(first, /unit\.mjs/);
  assert.ok(rest.some((line) => line === 'caused by RangeError: the tank is empty'), error.backtrace);
  const frames = error.backtrace.slice(0, error.backtrace.findIndex((line) => line.startsWith('caused by')));
  assert.match(frames.at(-1), /unit\.mjs/);
  assert.deepEqual([lines[0].error_type, lines[0].error, lines[0].ignored.length], ['pdf.busy', 'no ink', 1]);
});

test('a worker whose notifications do not arrive says so; a log that throws ends nothing', async () => {
  const lines = [];
  const log = { debug() {}, info() {}, error() {}, warn: (fields, message) => {
    lines.push(message);
    throw new Error('a log that throws');
  } };
  const deaf = { query: (text, values) => pool.query(text, /pg_notify/.test(text) ? ['elsewhere', ''] : values) };
  const make = (options) => new Worker({ queues: ['unit-deaf'], signals: [], log, handlers: { '*': () => {} },
    ...options });
  const workers = [make({ pool: { ...deaf, connect: () => pool.connect() } }), make({ pool })];
  const ended = workers.map((worker) => worker.run());
  for (const end = Date.now() + 30_000; lines.length === 0 && Date.now() < end;) {
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  await Promise.all(workers.map((worker) => worker.stop()));
  await Promise.all(ended);
  assert.deepEqual(lines.map((line) => line.slice(0, 23)), ['no notification arrives']);
});

test('the first push of a queue wakes a worker that waits for it', async () => {
  const queue = `unit-first-${Date.now()}`;
  let arrived;
  const handled = new Promise((resolve) => (arrived = resolve));
  const started = new Promise((resolve) => (arrived.started = resolve));
  const log = { debug() {}, info: (_, message) => message === 'started' && arrived.started(), warn() {}, error() {} };
  const worker = new Worker({ queues: [queue], signals: [], log, poll: 60, handlers: { '*': () => arrived() } });
  const ended = worker.run();
  await started;
  await new Promise((resolve) => setTimeout(resolve, 1000)); // its first claim has come back
  const begun = Date.now();
  await push(pool, 'unit.first', [], { queue });
  await handled;
  const ms = Date.now() - begun;
  await worker.stop();
  await ended;
  assert.ok(ms < 5_000, `${ms} ms`);
});

test('spans go from the push to the handler, with what it threw', async () => {
  const exporter = new InMemorySpanExporter();
  trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }));
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator(new W3CTraceContextPropagator());
  let inside;
  const job = await trace.getTracer('unit').startActiveSpan('order', async (span) => {
    const pushed = await push(pool, 'unit.traced', [],
        { queue: 'unit-traced', retry: { max_attempts: 1 }, meta: { a: 1 } });
    span.end();
    return pushed;
  });
  const lines = [];
  const note = (level) => (fields, message) => lines.push({ level, message, ...fields });
  const worker = new Worker({
    queues: ['unit-traced'], signals: [],
    log: { debug: note('debug'), info: note('info'), warn: note('warn'), error: note('error') },
    handlers: { '*': () => {
      inside = trace.getActiveSpan().spanContext().traceId;
      throw new JobError('no', { type: 'unit.no' });
    } },
  });
  await worker.run({ drain: true });
  assert.deepEqual((await waitResult(pool, job.id)).state, 'discarded');
  const [order, handled] = exporter.getFinishedSpans();
  assert.equal(handled.name, 'process unit.traced');
  assert.equal(handled.parentSpanContext.spanId, order.spanContext().spanId);
  assert.deepEqual([handled.spanContext().traceId, job.meta.trace_id, inside, job.meta.a],
    [...Array(3).fill(order.spanContext().traceId), 1]);
  assert.deepEqual([handled.status.code, handled.events[0].name, handled.attributes['messaging.message.id']],
    [2, 'exception', job.id]);
  assert.deepEqual(lines.filter((line) => line.job).map(({ level, message }) => [level, message]),
    [['debug', 'job started'], ['warn', 'job failed']]);
});

test('waiting for a result ends without one', async () => {
  const { id } = await push(pool, 'unit.never', [], { queue: 'unit' });
  assert.equal(await waitResult(pool, id, '10 ms'), undefined);
});
