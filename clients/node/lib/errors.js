// errors.js: what the server refuses, what handlers throw, and what they are interrupted with.
import { shown } from './json.js';
import { checkNames } from './options.js';

/** An error that ojs raised: its code in the specification, its SQLSTATE, and whether trying again can help. */
export class OjsError extends Error {
  constructor(cause, { code, retryable, details }) {
    super(cause.message, { cause });
    Object.assign(this, { name: 'OjsError', code, sqlstate: cause.code, retryable, details, hint: cause.hint });
  }
}

/** Thrown by a handler to say more than that the attempt failed. */
export class JobError extends Error {
  constructor(message, options = {}) {
    checkNames(options, ['type', 'retryable', 'details', 'delay', 'cause'], 'JobError');
    const { type = 'JobError', retryable, details, delay, cause } = options;
    super(message === undefined || typeof message === 'string' ? message : shown(message), { cause });
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

// The role that may call a function of ojs.
const PRODUCING = /^(push_job|push_many|cancel|wait_result|info)$/;

// Errors of PostgreSQL that say that ojs is not there, or not for this role.
function fromServer(error, db, text) {
  const message = String(error.message);
  const name = /\bojs\.(\w+)/.exec(text)?.[1];
  if (error.code === '42501' && [`schema ojs`, `function ${name}`].some((it) => message.endsWith(` for ${it}`))) {
    const role = PRODUCING.test(name) ? 'ojs_producer' : 'ojs_worker';
    return { code: 'PERMISSION_DENIED', hint: `Grant ${role} to the role that connects.` };
  }
  const database = db.database ?? db.options?.database ?? db.connectionParameters?.database;
  const where = database ? `database "${database}"` : 'this database';
  if (error.code === '3F000' && /"ojs"/.test(message)) {
    return { code: 'UNAVAILABLE', hint: `Run "create extension ojs" in ${where}, or connect to another one.` };
  }
  if (error.code === '42883' && /\bojs\.\w+\(/.test(message)) {
    return { code: 'UNAVAILABLE', hint: `Run "alter extension ojs update" in ${where}: its ojs is too old.` };
  }
  return undefined;
}

function translated(error, db, text) {
  if (typeof error?.detail === 'string' && /^{.*"code"/.test(error.detail)) {
    try {
      return new OjsError(error, JSON.parse(error.detail));
    } catch { // the DETAIL of somebody else
      return error;
    }
  }
  const found = error && fromServer(error, db, text);
  if (!found) return error;
  return Object.assign(new OjsError(error, { code: found.code, retryable: false, details: {} }), { hint: found.hint });
}

/**
 * The rows of a query, on whatever has the query() of pg. Some answer the rows alone. What ojs raises becomes an
 * OjsError.
 */
export async function query(db, text, values) {
  if (typeof db?.query !== 'function') {
    throw new TypeError('db must be something with query(), such as a pg Pool or Client');
  }
  let answer;
  try {
    answer = await db.query(text, values);
  } catch (error) {
    throw translated(error, db, text);
  }
  const rows = Array.isArray(answer) ? answer : answer?.rows;
  if (!Array.isArray(rows)) throw new TypeError('db.query() must answer rows, as that of a pg Pool or Client does');
  return rows;
}

const TRANSIENT = /^(08|53|57P0|40001|40P01|55P03)/; // connection, resources, restart, serialization, deadlock, lock

/** Whether the same statement may work later: the server was not reached, restarts, or was in somebody's way. */
export function isTransient(error) {
  if (error instanceof TypeError || error instanceof RangeError || error instanceof SyntaxError) return false;
  const sqlstate = error.sqlstate ?? error.code;
  return error.retryable ?? (TRANSIENT.test(sqlstate) || !/^(?=.*\d)[0-9A-Z]{5}$/.test(sqlstate));
}

/** Growing pauses between tries, in ms: no two workers come back at the same moment. */
export const backoff = (tries) => Math.min(10_000, 100 * 2 ** Math.min(tries, 10)) * (0.5 + Math.random() / 2);
