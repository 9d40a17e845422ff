// job.js: a job in the hands of a handler.
import { setTimeout as sleep } from 'node:timers/promises';
import { backoff, isTransient, JobAborted, query } from './errors.js';
import { toJson } from './json.js';
import { duration } from './options.js';
import { report } from './report.js';

const LONGEST_TIMER = 2 ** 31 - 1;
const ANSWER_WITHIN = 15_000;
const ACK = 'select (ojs.ack($1::text::uuid, $2::text::jsonb, lease_id => $3)).id';
const GONE = ['lost', 'cancelled', 'shutdown'];
// Refusals that say that the job is not ours; any other is about the report.
const NOT_OURS = ['LEASE_NOT_HELD', 'NOT_FOUND', 'JOB_ALREADY_COMPLETED', 'JOB_ALREADY_CANCELLED',
  'INVALID_STATE_TRANSITION', 'PERMISSION_DENIED', 'UNAVAILABLE'];
const outcomeOf = (refused) => (refused.code === 'JOB_ALREADY_COMPLETED' ? 'completed' : 'gone');
const json = (value, what) => toJson(value, what) ?? null;

// Its public members are described in index.d.ts.
export class Job {
  #pool;
  #controller = new AbortController();
  signal = this.#controller.signal;
  #aborts = new Map(); // by reason: the signal keeps the first one only
  #timers = {};
  #leaseId;
  #settled; // completed or released: there is nothing left to say

  constructor(row, pool, sentAt) {
    const { lease_id, lease_ms, timeout_ms, extra, ...attributes } = row;
    Object.assign(this, attributes, { extra: extra ?? {}, checkpoint: extra?.checkpoint?.state });
    this.#pool = pool;
    this.#leaseId = lease_id;
    this.leaseMs = lease_ms;
    this.beatWithin = Math.min(lease_ms, (extra?.heartbeat_timeout ?? 60) * 1000) / 3;
    this.deadline = new Date(Date.now() + timeout_ms);
    this.#after('deadline', timeout_ms, 'timeout', 'the job has run for longer than its timeout');
    this.extended(sentAt);
  }

  #after(name, ms, reason, message) {
    clearTimeout(this.#timers[name]);
    if (ms <= LONGEST_TIMER) this.#timers[name] = setTimeout(() => this.abort(reason, message), Math.max(0, ms));
  }

  /** The server extended the lease, not before `sentAt`. Where it can no longer do so, the handler must stop. */
  extended(sentAt) {
    const rest = sentAt + this.leaseMs - performance.now();
    this.#after('lease', rest, 'lost', 'the lease has run out: no heartbeat reached the server');
  }

  abort(reason, message) {
    const abort = new JobAborted(reason, message);
    this.#aborts.set(reason, abort);
    this.#controller.abort(abort);
  }

  async transaction(effect) {
    const client = await this.#pool.connect();
    let broken;
    const onError = (error) => (broken = error); // without a listener it would end the process
    client.on('error', onError);
    try {
      await client.query('begin');
      const result = await effect(client);
      await this.#ack(client, json(result, 'the result'));
      await client.query('commit');
      this.#settled = 'completed';
      return result;
    } catch (error) {
      await client.query('rollback').catch(onError);
      throw error;
    } finally {
      client.removeListener('error', onError);
      client.release(broken);
    }
  }

  async complete(db, result) {
    await this.#ack(db, json(result, 'the result'));
    this.#settled = 'completed';
  }

  async release(delay = 0) {
    await query(this.#pool, 'select (ojs.nack($1, $2::interval, lease_id => $3)).id',
      [this.id, duration(delay, 'delay'), this.#leaseId]);
    this.#settled = 'released';
  }

  async progress(progress, message = null, data) {
    await query(this.#pool, 'select ojs.progress($1, $2::numeric, $3, $4)',
      [this.id, progress, message, json(data, 'the data of progress')]);
  }

  async saveCheckpoint(state, db = this.#pool) {
    await query(db, 'select ojs.checkpoint($1::text::uuid, $2::text::jsonb)', [this.id, json(state, 'the checkpoint')]);
    this.checkpoint = state;
  }

  #ack(db, result) {
    return query(db, ACK, [this.id, result, this.#leaseId]);
  }

  // Over the pool. An answer that does not come counts as none: the connection may be dead.
  #tell(text, values) {
    return query({ query: () => this.#pool.query({ text, values, query_timeout: ANSWER_WITHIN }) }, text);
  }

  // Why the job is not this worker's any more.
  #gone() {
    return GONE.map((reason) => this.#aborts.get(reason)).find(Boolean);
  }

  // Again and again while the server is away, as long as the job may be ours.
  async #insist(say) {
    for (let tries = 0; ; tries++) {
      try {
        return await say();
      } catch (error) {
        if (tries > 0 && error.code === 'JOB_ALREADY_COMPLETED') return undefined; // an earlier try was committed
        if (!isTransient(error) || this.#gone()) throw error;
        await sleep(backoff(tries));
      }
    }
  }

  /**
   * Runs the handler and tells the server. Returns the outcome (completed, released, failed, gone), and of what went
   * wrong the error ({ type, message }) and what of it was ignored.
   */
  async run(handler) {
    try {
      const result = json(await handler(this), 'the result');
      if (!this.#settled) await this.#insist(() => this.#tell(ACK, [this.id, result, this.#leaseId]));
      return { outcome: this.#settled ?? 'completed' };
    } catch (error) {
      return await this.#failed(error).catch((refused) => ({ outcome: outcomeOf(refused), error: report(refused) }));
    } finally {
      Object.values(this.#timers).forEach(clearTimeout);
    }
  }

  // The handler threw, or its result was refused. If the job is not ours any more, this is refused too.
  async #failed(error) {
    const gone = this.#gone();
    const timeout = this.#aborts.get('timeout');
    if (gone && gone.reason !== 'shutdown') return { outcome: 'gone', error: report(gone) };
    if (gone && !timeout) {
      await this.release();
      return { outcome: 'released', error: report(gone) };
    }
    const told = report(timeout ?? error);
    const fail = (version, delay) => this.#insist(() => this.#tell(
      'select (ojs.fail($1, $2, lease_id => $3, delay => $4::interval)).id', [this.id, version, this.#leaseId, delay]));
    const [whole, short] = told.versions;
    await fail(whole, told.delay).catch((refused) => {
      if (isTransient(refused) || NOT_OURS.includes(refused.code)) throw refused;
      told.ignored.push(refused.message);
      return fail(short, null);
    });
    return { outcome: 'failed', error: told };
  }
}
