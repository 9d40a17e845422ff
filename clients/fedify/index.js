// index.js: Fedify's MessageQueue over ojs. A message is the only argument of a job.
import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { push, pushMany, Worker } from 'ojs-postgres';
import pg from 'pg';

const TYPE = 'fedify.message';
const RETRY = {
  max_attempts: 10, initial_interval: 'PT1S', backoff_coefficient: 2, max_interval: 'PT12H', jitter: true,
  on_exhaustion: 'dead_letter',
};
const DEPTH = `
  select coalesce(sum(s.ready + s.delayed + s.scheduled + s.retryable), 0)::float8 as queued,
    coalesce(sum(s.ready), 0)::float8 as ready, coalesce(sum(s.scheduled + s.retryable), 0)::float8 as delayed
  from ojs.queues q, ojs.queue_stats(q.name) s where q.name = $1`;
const PAUSE = 10_000; // before a worker that could not begin is started again
const problemsOnly = {
  debug() {}, info() {},
  warn: (fields, message) => console.warn(`ojs: ${message}`, fields),
  error: (fields, message) => console.error(`ojs: ${message}`, fields),
};

// Keys of Fedify are texts of any length, often URLs.
const key = (text, longest) =>
  Buffer.byteLength(text) <= longest ? text : `sha256:${createHash('sha256').update(text).digest('hex')}`;

// A Temporal.Duration in seconds. Months and days are as long as they are from now on.
const seconds = (delay) => delay.total({ unit: 'second', relativeTo: new Date().toISOString().slice(0, 10) });

export class OjsMessageQueue {
  nativeRetrial = true;
  nativeDeduplication = true;
  #pool;
  #ownPool;
  #queue;
  #attributes;
  #worker;

  constructor({ connection = {}, pool, queue = 'fedify', retry = RETRY, ordering, attributes, ...worker } = {}) {
    const settings = typeof connection === 'string' ? { connectionString: connection } : connection;
    this.#ownPool = pool ? undefined : new pg.Pool(settings);
    this.#ownPool?.on('error', () => {}); // an idle connection broke: the next query opens another
    this.#pool = pool ?? this.#ownPool;
    this.#queue = queue;
    this.#attributes = { ...attributes, retry, ordering };
    this.#worker = { log: problemsOnly, ...worker, connection, pool };
    this.#listener({ '*': () => {} }); // refuses options that are none
  }

  #job(message, { delay, orderingKey } = {}) {
    return {
      ...this.#attributes, queue: this.#queue, type: TYPE, args: [message], delay: delay && seconds(delay),
      ...(orderingKey == null ? { ordering: undefined } : { ordering_key: key(orderingKey, 255) }),
    };
  }

  async enqueue(message, options = {}) {
    const { type, args, ...attributes } = this.#job(message, options);
    const { deduplicationKey } = options;
    if (deduplicationKey != null) attributes.deduplication_key = key(deduplicationKey, 1024);
    await push(this.#pool, type, args, attributes);
  }

  async enqueueMany(messages, options = {}) {
    if (messages.length === 0) return;
    const { deduplicationKey } = options;
    await pushMany(this.#pool, messages.map((message) => this.#job(message, options)),
      { deduplication_key: deduplicationKey == null ? null : key(deduplicationKey, 1024) });
  }

  #listener(handlers) {
    return new Worker({ ...this.#worker, queues: [this.#queue], signals: [], handlers });
  }

  /** Resolves once the signal is aborted and the handlers have ended; or the worker was told to terminate. */
  async listen(handler, { signal } = {}) {
    const handlers = { [TYPE]: async (job) => void (await handler(job.args[0])) };
    while (!signal?.aborted) {
      const worker = this.#listener(handlers);
      const stop = () => void worker.stop();
      signal?.addEventListener('abort', stop, { once: true });
      const problem = await worker.run().catch((error) => error);
      signal?.removeEventListener('abort', stop);
      if (!problem) return;
      // A wrong password, no extension: somebody may mend it.
      (this.#worker.log || problemsOnly).error({ error: problem.message, code: problem.code }, 'cannot listen');
      await sleep(PAUSE, undefined, { signal }).catch(() => {});
    }
  }

  /** Needs the role ojs_observer. */
  async getDepth() {
    const { rows: [depth] } = await this.#pool.query(DEPTH, [this.#queue]);
    return depth;
  }

  /** Closes the pool, if it is the queue's own. */
  async close() {
    await this.#ownPool?.end();
  }
}
