#!/usr/bin/env node
// test/clients/unit.mjs: what a program sees that pushes jobs over clients/node. Prints TAP. Needs a database with the
// extension, by PGHOST and so on. unit.py does the same.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { test } from 'node:test';
import { push, pushMany, cancel, info, waitResult, JobError, OjsError, Worker } from '../../clients/node/index.js';

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
  assert.throws(() => new Worker({}), TypeError);
  assert.throws(() => new Worker({ handlers: {}, queues: 'mail' }), TypeError);
  assert.throws(() => new Worker({ handlers: {}, concurrency: 0 }), RangeError);
  const worker = new Worker({ handlers: {}, queues: ['My_Queue'], signals: [], log: false });
  await assert.rejects(worker.run(), { code: 'INVALID_QUEUE' });
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
