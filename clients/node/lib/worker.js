// worker.js: claims jobs and has them handled. One connection of its own listens, claims and sends heartbeats, so that
// handlers which use up the pool cannot cost the worker its leases. Everything else goes through the pool.
import { randomInt } from 'node:crypto';
import { hostname } from 'node:os';
import pg from 'pg';
import { backoff, isTransient, query } from './errors.js';
import { Job } from './job.js';
import { toJson } from './json.js';
import { checkNames, duration, milliseconds } from './options.js';
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

const OPTIONS = ['handlers', 'queues', 'concurrency', 'connection', 'pool', 'lease', 'grace', 'poll', 'heartbeat',
  'name', 'labels', 'signals', 'log'];
const IN_SECONDS = { grace: 900, poll: 60, heartbeat: 60 }; // larger numbers were meant as ms
const LONG_SERVED = 10_000; // a connection that held so long starts the pauses anew
const HEARD_WITHIN = 5_000;

// A time of a worker in ms.
function timeOf(options, name) {
  const value = options[name];
  if (typeof value === 'number' && value > IN_SECONDS[name]) {
    throw new RangeError(`${name} is in seconds: ${value} is more than ${IN_SECONDS[name]}. Write ${value / 1000}, or `
      + `'${value} s' to mean it`);
  }
  const ms = milliseconds(value, name);
  if (ms < 10 && name !== 'grace') throw new RangeError(`${name} must be 10 ms at least`);
  return ms;
}

function checkHandlers(handlers) {
  if (!handlers || typeof handlers !== 'object' || Array.isArray(handlers)) {
    throw new TypeError('handlers must be an object: type to function');
  }
  const types = Object.keys(handlers);
  if (types.length === 0) throw new TypeError('handlers must have one at least: type to function');
  const wrong = types.find((type) => typeof handlers[type] !== 'function');
  if (wrong !== undefined) {
    throw new TypeError(`handlers["${wrong}"] must be a function, not a ${typeof handlers[wrong]}`);
  }
}

const areTexts = (list) => Array.isArray(list) && list.every((it) => typeof it === 'string');

// Nothing that a log of the user's does may end the worker.
function guarded(log) {
  const call = (level) => (fields, message) => {
    try {
      log[level](fields, message);
    } catch (error) {
      console.error(`ojs: the log failed: ${error?.message}`);
    }
  };
  return { debug: call('debug'), info: call('info'), warn: call('warn'), error: call('error') };
}

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
  #failures = 0; // in a row
  #servedSince = Infinity; // when the connection's first claim succeeded
  #tellsOfSilence = true; // until a connection has been checked for notifications
  #wakeUp = () => {};
  #timers = [];
  #finished;

  constructor(options) {
    checkNames(options, OPTIONS, 'Worker');
    const given = Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
    this.#options = {
      queues: ['default'], concurrency: 10, lease: null, grace: 25, poll: 5, heartbeat: 5, labels: [],
      signals: ['SIGTERM', 'SIGINT'], name: `${hostname()}-${process.pid}-${randomInt(1e9)}`, ...given,
    };
    const { handlers, concurrency, connection, pool, log, queues, lease } = this.#options;
    checkHandlers(handlers);
    const { name, labels } = this.#options;
    if (!areTexts(queues) || !queues.length) throw new TypeError('queues must be an array of names');
    if (!areTexts(labels)) throw new TypeError('labels must be an array of texts');
    if (typeof name !== 'string') throw new TypeError('name must be a text');
    if (!Number.isInteger(concurrency) || concurrency < 1 || concurrency > 1000) {
      throw new RangeError('concurrency must be 1 to 1000');
    }
    toJson([name, queues, labels], 'name, queues or labels');
    this.#options.lease = duration(lease, 'lease');
    for (const time of Object.keys(IN_SECONDS)) this.#options[time] = timeOf(this.#options, time);
    this.name = name;
    this.#log = guarded(log === false ? silent : log ?? jsonLines);
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

  /** Claims nothing more, waits for handlers up to `grace`, then aborts them and gives their jobs back. */
  stop(given) {
    const grace = given === undefined ? this.#options.grace : timeOf({ grace: given }, 'grace');
    const about = { worker: this.name, running: this.#running.size, grace: grace / 1000 };
    if (!this.#stopping) this.#log.info(about, 'stopping');
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
    this.#tellsOfSilence = !drain;
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
          if (performance.now() - this.#servedSince > LONG_SERVED) this.#failures = 0;
          this.#servedSince = Infinity;
          const pause = backoff(this.#failures++);
          const about = { worker: this.name, error: error.message, code: error.code, pause: Math.round(pause) };
          this.#log.warn(about, 'connecting again');
          this.#disconnect();
          // Whoever wakes the worker meanwhile, such as a job that ends: the server gets its pause.
          const end = performance.now() + pause;
          while (performance.now() < end && !this.#over()) await this.#sleep(end - performance.now());
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
      if (this.#control === control) this.#wakeUp();
    };
    const probe = `ojs-postgres-${randomInt(1e12)}`;
    control.client.on('error', broken).on('end', broken).on('notification', ({ channel: on, payload }) => {
      if (on === probe) control.hears = true;
      else this.#more ||= on !== 'ojs' || queues.includes(payload);
      if (this.#more) this.#wakeUp();
    });
    this.#control = control;
    await control.client.connect();
    const channels = [...queues.map(channel), ...(this.#tellsOfSilence ? [probe] : [])];
    await this.#ask(channels.map((name) => `listen ${pg.escapeIdentifier(name)}`).join(';'));
    if (!this.#registered) {
      const me = { hostname: hostname(), pid: process.pid, queues, concurrency, labels, library: 'ojs-postgres/node' };
      await this.#ask('select ojs.register_worker($1, $2)', [this.name, JSON.stringify(me)]);
      this.#log.info({ worker: this.name, queues, concurrency }, 'started');
    }
    this.#registered = this.#more = true;
    this.#nextBeat = 0;
    if (this.#tellsOfSilence) this.#checkHearing(control, probe);
  }

  // A transaction pooler takes LISTEN, and passes no notification on. So another session sends one, once.
  async #checkHearing(control, probe) {
    try {
      await this.#pool.query('select pg_notify($1, $2)', [probe, '']);
    } catch {
      return; // that the pool has no connection, handlers will tell
    }
    const timer = setTimeout(() => {
      if (control.hears || control.broken || this.#control !== control || this.#stopping) return;
      this.#log.warn({ worker: this.name, queues: this.#options.queues, poll: this.#options.poll / 1000 },
        'no notification arrives: is there a pooler in transaction mode between? Give the worker a direct connection');
    }, HEARD_WITHIN);
    this.#timers.push(timer.unref());
    this.#tellsOfSilence = false;
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
    const ask = () => client.query({ text, values, query_timeout: ANSWER_WITHIN });
    return query({ query: ask, database: client.database }, text);
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
    if (this.#servedSince === Infinity) this.#servedSince = sentAt;
    this.#more ||= rows.length === free;
    this.#nextPoll = Math.max(this.#nextPoll, performance.now() + 10); // a slow claim is no reason to claim at once
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
      else if (error) {
        const { message, type, ignored } = error;
        const told = { ...fields, error: message, error_type: type, ...(ignored.length > 0 && { ignored }) };
        this.#log.warn(told, `job ${outcome}`);
      }
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
