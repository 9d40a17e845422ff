// job.js: a job in the hands of a handler.
import { setTimeout as sleep } from 'node:timers/promises';
import { backoff, failure, isTransient, JobAborted, JobError, query } from './errors.js';

const LONGEST_TIMER = 2 ** 31 - 1;
const outcomeOf = (refused) => (refused.code === 'JOB_ALREADY_COMPLETED' ? 'completed' : 'gone');
const json = (value) => (value === undefined ? null : JSON.stringify(value));

// Its public members are described in index.d.ts.
export class Job {
  #pool;
  #controller = new AbortController();
  signal = this.#controller.signal;
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
    this.#controller.abort(new JobAborted(reason, message));
  }

  async transaction(effect) {
    const client = await this.#pool.connect();
    let broken;
    const onError = (error) => (broken = error); // without a listener it would end the process
    client.on('error', onError);
    try {
      await client.query('begin');
      const result = await effect(client);
      await this.#ack(client, json(result));
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
    await this.#ack(db, json(result));
    this.#settled = 'completed';
  }

  async release(delay = '0 s') {
    await query(this.#pool, 'select (ojs.nack($1, $2::interval, lease_id => $3)).id', [this.id, delay, this.#leaseId]);
    this.#settled = 'released';
  }

  async progress(progress, message = null, data) {
    await query(this.#pool, 'select ojs.progress($1, $2, $3, $4)', [this.id, progress, message, json(data)]);
  }

  async saveCheckpoint(state, db = this.#pool) {
    await query(db, 'select ojs.checkpoint($1, $2)', [this.id, JSON.stringify(state)]);
    this.checkpoint = state;
  }

  #ack(db, result) {
    return query(db, 'select (ojs.ack($1, $2, lease_id => $3)).id', [this.id, result, this.#leaseId]);
  }

  // Again and again while the server is away, as long as the job may be ours.
  async #insist(report) {
    for (let tries = 0; ; tries++) {
      try {
        return await report();
      } catch (error) {
        if (tries > 0 && error.code === 'JOB_ALREADY_COMPLETED') return undefined; // an earlier try was committed
        if (!isTransient(error) || ['lost', 'cancelled', 'shutdown'].includes(this.signal.reason?.reason)) throw error;
        await sleep(backoff(tries));
      }
    }
  }

  /** Runs the handler and tells the server. Returns the outcome (completed, released, failed, gone) and the error. */
  async run(handler) {
    try {
      const result = json(await handler(this));
      if (!this.#settled) await this.#insist(() => this.#ack(this.#pool, result));
      return { outcome: this.#settled ?? 'completed' };
    } catch (error) {
      return await this.#failed(error).catch((refused) => ({ outcome: outcomeOf(refused), error: refused }));
    } finally {
      Object.values(this.#timers).forEach(clearTimeout);
    }
  }

  // The handler threw, or its result was refused. If the job is not ours any more, this is refused too.
  async #failed(error) {
    const { reason } = this.signal.reason ?? {};
    if (reason === 'cancelled' || reason === 'lost') return { outcome: 'gone', error: this.signal.reason };
    if (reason === 'shutdown') {
      await this.release();
      return { outcome: 'released', error: this.signal.reason };
    }
    const thrown = reason === 'timeout' ? this.signal.reason : error;
    const delay = thrown instanceof JobError ? thrown.delay : null;
    await this.#insist(() => query(this.#pool, 'select (ojs.fail($1, $2, lease_id => $3, delay => $4::interval)).id',
      [this.id, failure(thrown), this.#leaseId, delay]));
    return { outcome: 'failed', error: thrown };
  }
}
