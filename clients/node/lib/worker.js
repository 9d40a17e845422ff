// worker.js: claims jobs and has them handled. One connection of its own listens, claims and sends heartbeats, so that
// handlers which use up the pool cannot cost the worker its leases. Everything else goes through the pool.
import { randomInt } from 'node:crypto';
import { hostname } from 'node:os';
import pg from 'pg';
import { backoff, isTransient, query } from './errors.js';
import { Job } from './job.js';
import { inSpan } from './trace.js';

const CLAIM = `
  select id, type, queue, args, meta, priority, attempt, max_attempts, deliveries, tags, created_at, scheduled_at,
    errors, extra, lease_id, extract(epoch from coalesce(timeout, '30 min'))::float8 * 1000 as timeout_ms,
    extract(epoch from lease_expires_at - clock_timestamp())::float8 * 1000 as lease_ms
  from ojs.claim($1::text[], $2, max => $3, lease => $4::interval, missing_ok => true)`;
const ANSWER_WITHIN = 15_000; // no call of ours waits; an answer that is as late as this will not come
const LAST_WORDS = 1_000; // for handlers that were told to stop

const write = (level) => (fields, message) =>
  console.error(JSON.stringify({ time: new Date().toISOString(), level, message, ...fields }));
const jsonLines = { debug() {}, info: write('info'), warn: write('warn'), error: write('error') };
const silent = { debug() {}, info() {}, warn() {}, error() {} };

// A name of PostgreSQL has 63 bytes. Where the queue's own channel has no name, the one of all queues does.
const channel = (queue) => (Buffer.byteLength(queue) <= 59 ? `ojs.${queue}` : 'ojs');

export class Worker {
  #options;
  #pool;
  #ownPool;
  #log;
  #control; // { client, broken } while connected
  #running = new Map();
  #more = true; // there may be jobs to claim
  #nextPoll = 0;
  #nextBeat = 0;
  #quiet = false;
  #stopping = false;
  #hard = false;
  #registered = false;
  #welcome = false; // a claim has succeeded: what fails from now on is tried again
  #failures = 0; // since then
  #wakeUp = () => {};
  #timers = [];
  #finished;

  constructor(options) {
    this.#options = {
      queues: ['default'], concurrency: 10, lease: null, grace: 25_000, poll: 5_000, heartbeat: 5_000, labels: [],
      signals: ['SIGTERM', 'SIGINT'], name: `${hostname()}-${process.pid}-${randomInt(1e9)}`, ...options,
    };
    const { handlers, concurrency, connection, pool, log, queues } = this.#options;
    if (!handlers || typeof handlers !== 'object') throw new TypeError('handlers must be an object: type to function');
    if (!Array.isArray(queues) || !queues.length) throw new TypeError('queues must be an array of names');
    if (!(concurrency >= 1 && concurrency <= 1000)) throw new RangeError('concurrency must be 1 to 1000');
    this.name = this.#options.name;
    this.#log = log === false ? silent : log ?? jsonLines;
    this.#options.connection = {
      application_name: 'ojs-postgres', keepAlive: true, connectionTimeoutMillis: 10_000,
      ...(typeof connection === 'string' ? { connectionString: connection } : connection),
    };
    this.#ownPool = pool ? undefined : new pg.Pool({ ...this.#options.connection, max: concurrency });
    this.#ownPool?.on('error', (error) => this.#log.warn({ error: error.message }, 'an idle connection broke'));
    this.#pool = pool ?? this.#ownPool;
  }

  /** Works until stop() or a signal; with `drain`, until the queues have nothing to claim. */
  run({ drain = false } = {}) {
    return (this.#finished ??= this.#run(drain));
  }

  /** Claims nothing more, waits for handlers up to `grace` ms, then aborts them and gives their jobs back. */
  stop(grace = this.#options.grace) {
    if (!this.#stopping) this.#log.info({ worker: this.name, running: this.#running.size, grace }, 'stopping');
    this.#stopping = true;
    this.#nextBeat = 0;
    const abort = () => this.#running.forEach((job) => job.abort('shutdown', 'the worker stops'));
    const end = () => {
      this.#hard = true;
      this.#wakeUp();
    };
    this.#timers.push(setTimeout(abort, grace).unref(), setTimeout(end, grace + LAST_WORDS).unref());
    this.#wakeUp();
    return this.#finished ?? Promise.resolve();
  }

  async #run(drain) {
    const onSignal = () => this.stop(this.#stopping ? 0 : undefined); // the second one hurries
    const signals = this.#options.signals || [];
    signals.forEach((signal) => process.on(signal, onSignal));
    try {
      while (!this.#over()) {
        try {
          await this.#connect();
          await this.#serve(drain);
          break;
        } catch (error) {
          if (!this.#welcome && !isTransient(error)) throw error; // wrong password, no extension, no such queue
          const pause = backoff(this.#failures++);
          this.#log.warn({ worker: this.name, error: error.message, code: error.code, pause }, 'connecting again');
          this.#disconnect();
          await this.#sleep(pause);
        }
      }
    } finally {
      signals.forEach((signal) => process.removeListener(signal, onSignal));
      await this.#end();
    }
  }

  #over() {
    return this.#stopping && (this.#running.size === 0 || this.#hard);
  }

  async #connect() {
    const { connection, queues, concurrency, labels } = this.#options;
    const control = { client: new pg.Client(connection) };
    const broken = (error) => {
      control.broken ??= error ?? new Error('the connection was closed');
      this.#wakeUp();
    };
    control.client.on('error', broken).on('end', broken).on('notification', ({ channel: on, payload }) => {
      this.#more ||= on !== 'ojs' || queues.includes(payload);
      if (this.#more) this.#wakeUp();
    });
    this.#control = control;
    await control.client.connect();
    await this.#ask(queues.map((queue) => `listen ${pg.escapeIdentifier(channel(queue))}`).join(';'));
    if (!this.#registered) {
      const me = { hostname: hostname(), pid: process.pid, queues, concurrency, labels, library: 'ojs-postgres/node' };
      await this.#ask('select ojs.register_worker($1, $2)', [this.name, JSON.stringify(me)]);
      this.#log.info({ worker: this.name, queues, concurrency }, 'started');
    }
    this.#registered = this.#more = true;
    this.#nextBeat = 0;
  }

  #disconnect() {
    const control = this.#control;
    this.#control = undefined;
    control?.client.end().catch(() => {});
    control?.client.connection?.stream?.destroy(); // end() waits for a server that may not answer
  }

  async #ask(text, values) {
    const { client, broken } = this.#control ?? { broken: new Error('not connected') };
    if (broken) throw broken;
    return query({ query: () => client.query({ text, values, query_timeout: ANSWER_WITHIN }) });
  }

  async #serve(drain) {
    for (;;) {
      if (performance.now() >= this.#nextBeat) await this.#beat();
      if (this.#over()) return;
      const free = this.#options.concurrency - this.#running.size;
      const claims = free > 0 && !this.#stopping && !this.#quiet;
      if (claims && (this.#more || performance.now() >= this.#nextPoll)) {
        await this.#claim(free);
      } else if (drain && !this.#more && this.#running.size === 0) {
        this.#stopping = true;
      } else {
        if (this.#control.broken) throw this.#control.broken;
        await this.#sleep(Math.min(this.#nextBeat, claims ? this.#nextPoll : Infinity) - performance.now());
      }
    }
  }

  async #claim(free) {
    const { queues, lease, poll } = this.#options;
    const sentAt = performance.now();
    this.#more = false; // a notification may set it meanwhile
    this.#nextPoll = sentAt + poll;
    const rows = await this.#ask(CLAIM, [queues, this.name, free, lease]).catch((error) => {
      if (error.code !== 'RATE_LIMITED') throw error;
      this.#nextPoll = sentAt + (error.details?.retry_after_ms ?? poll);
      return [];
    });
    this.#welcome = true;
    this.#failures = 0;
    this.#more ||= rows.length === free;
    for (const row of rows) this.#start(new Job(row, this.#pool, sentAt));
  }

  #start(job) {
    this.#running.get(job.id)?.abort('lost', 'the job was delivered again');
    this.#running.set(job.id, job);
    this.#nextBeat = Math.min(this.#nextBeat, performance.now() + job.beatWithin);
    const { handlers } = this.#options;
    const handler = (Object.hasOwn(handlers, job.type) && handlers[job.type]) || handlers['*'];
    const about = { worker: this.name, job: job.id, type: job.type, queue: job.queue, attempt: job.attempt };
    const begun = performance.now();
    this.#log.debug(about, 'job started');
    const work = handler ? (it) => inSpan(it, async () => handler(it)) : (it) => it.release('30 s');
    job.run(work).then(({ outcome, error }) => {
      if (this.#running.get(job.id) === job) this.#running.delete(job.id);
      const fields = { ...about, outcome, ms: Math.round(performance.now() - begun) };
      if (!handler) this.#log.warn(fields, 'nothing here handles this type: given back for 30 s');
      else if (error) this.#log.warn({ ...fields, error: error.message, error_type: error.name }, `job ${outcome}`);
      else this.#log.info(fields, `job ${outcome}`);
      this.#wakeUp();
    });
  }

  async #beat() {
    const jobs = [...this.#running.values()];
    const sentAt = performance.now();
    this.#nextBeat = sentAt + Math.max(50, Math.min(this.#options.heartbeat, ...jobs.map((job) => job.beatWithin)));
    const [answer] = await this.#ask('select directive, extended, cancelled, lost from ojs.beat($1, $2::uuid[], $3)',
      [this.name, jobs.map((job) => job.id), this.#stopping ? 'terminate' : 'running']);
    for (const id of answer.extended) this.#running.get(id)?.extended(sentAt);
    for (const id of answer.cancelled) this.#running.get(id)?.abort('cancelled', 'the job was cancelled');
    for (const id of answer.lost) this.#running.get(id)?.abort('lost', 'the job is not this worker\'s any more');
    this.#quiet = answer.directive !== 'running';
    if (answer.directive === 'terminate' && !this.#stopping) this.stop();
  }

  async #end() {
    this.#timers.forEach(clearTimeout);
    try {
      if (this.#registered) await this.#ask('select ojs.deregister_worker($1, release => true)', [this.name]);
    } catch (error) {
      this.#log.warn({ worker: this.name, error: error.message }, 'could not say goodbye: leases will run out');
    }
    this.#disconnect();
    // A handler that does not stop may hold a connection for ever.
    if (this.#ownPool) await Promise.race([this.#ownPool.end(), this.#sleep(LAST_WORDS)]);
    this.#wakeUp();
    this.#log.info({ worker: this.name }, 'stopped');
  }

  #sleep(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.#wakeUp(), Math.max(0, ms));
      this.#wakeUp = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}
