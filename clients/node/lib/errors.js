// errors.js: what the server refuses, what handlers throw, and what they are interrupted with.

/** An error that ojs raised: its code in the specification, its SQLSTATE, and whether trying again can help. */
export class OjsError extends Error {
  constructor(cause, { code, retryable, details }) {
    super(cause.message, { cause });
    Object.assign(this, { name: 'OjsError', code, sqlstate: cause.code, retryable, details, hint: cause.hint });
  }
}

/** Thrown by a handler to say more than that the attempt failed. */
export class JobError extends Error {
  constructor(message, { type = 'JobError', retryable, details, delay, cause } = {}) {
    super(message, { cause });
    Object.assign(this, { name: 'JobError', type, retryable, details, delay });
  }
}

/** The reason of a job's signal: `reason` is cancelled, lost, timeout or shutdown. */
export class JobAborted extends Error {
  constructor(reason, message) {
    super(message);
    Object.assign(this, { name: 'JobAborted', reason });
  }
}

/** The rows of a query, on whatever has the query() of pg. What ojs raises becomes an OjsError. */
export async function query(db, text, values) {
  try {
    return (await db.query(text, values)).rows;
  } catch (error) {
    throw /^{.*"code"/.test(error.detail) ? new OjsError(error, JSON.parse(error.detail)) : error;
  }
}

const TRANSIENT = /^(08|53|57P0|40001|40P01|55P03)/; // connection, resources, restart, serialization, deadlock, lock

/** Whether the same statement may work later: the server was not reached, restarts, or was in somebody's way. */
export function isTransient(error) {
  const sqlstate = error.sqlstate ?? error.code;
  return error.retryable ?? (TRANSIENT.test(sqlstate) || !/^(?=.*\d)[0-9A-Z]{5}$/.test(sqlstate));
}

/** Growing pauses between tries, in ms: no two workers come back at the same moment. */
export const backoff = (tries) => Math.min(10_000, 100 * 2 ** Math.min(tries, 10)) * (0.5 + Math.random() / 2);

const UNSTORABLE = /[\0\ud800-\udfff]/gu; // what jsonb cannot hold
const storable = (text) => String(text).replace(UNSTORABLE, '');

/** What a handler threw, as ojs.fail() takes it. */
export function failure(thrown) {
  const error = thrown instanceof Error ? thrown : new Error(String(thrown));
  const unnamed = ['Error', 'error', 'OjsError'].includes(error.name) && typeof error.code === 'string';
  const type = error instanceof JobError ? error.type
    : error instanceof JobAborted ? error.reason
    : unnamed ? error.code : error.name;
  return JSON.stringify({
    type: storable(type) || 'Error',
    message: storable(error.message) || storable(type) || 'Error',
    backtrace: storable(error.stack ?? '').split('\n').slice(1, 51).map((line) => line.trim()),
    ...(error instanceof JobError && { retryable: error.retryable, details: error.details }),
  });
}
