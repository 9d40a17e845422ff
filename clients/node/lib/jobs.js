// jobs.js: producing jobs. `db` is whatever has the query() of pg: a Pool, a Client, or a client within a transaction.
import { OjsError, query } from './errors.js';
import { toJson } from './json.js';
import { ATTRIBUTES, checkNames, duration, OF_SERVER, withTimes } from './options.js';
import { withTrace } from './trace.js';

const WAY_OUT = { also: OF_SERVER, way: ' Attributes of your own go into options.' };
const BATCH = ['atomicity', 'idempotency_key', 'deduplication_key', 'deduplication_ttl'];
const isObject = (value) => value !== null && typeof value === 'object' && !Array.isArray(value);

// A job as the JSON envelope of the specification.
function envelope({ options = {}, ...job }, what) {
  checkNames(job, ATTRIBUTES, what, WAY_OUT);
  if (!isObject(options)) throw new TypeError(`${what}: options must be an object of attributes`);
  const meta = withTrace(job.meta);
  return { args: [], ...withTimes(job), ...options, ...(meta && { meta }) };
}

// The text of JSON goes through text: a driver that knows of jsonb would write it once more.
export async function push(db, type, args, options) {
  const given = options ?? {};
  if (!isObject(given)) throw new TypeError('push: options must be an object');
  const job = toJson(envelope({ ...given, type, args: args === undefined ? [] : args }, 'push'), 'the job');
  return (await query(db, 'select ojs.push_job($1::text::jsonb) as job', [job]))[0].job;
}

export async function pushMany(db, jobs, options) {
  const given = options ?? {};
  checkNames(given, BATCH, 'pushMany');
  const { atomicity = 'atomic', idempotency_key = null, deduplication_key = null, deduplication_ttl } = given;
  // What is no list, or no job, the server refuses.
  const list = !Array.isArray(jobs) ? toJson(jobs, 'jobs') ?? null
    : `[${Array.from(jobs, (job, i) => toJson(isObject(job) ? envelope(job, `job ${i}`) : job ?? null, `job ${i}`))}]`;
  for (const name of ['atomicity', 'idempotency_key', 'deduplication_key']) checkText(given[name], name);
  return query(db, `select index, id, status, error
    from ojs.push_many($1::text::jsonb, $2::text, $3::text::interval, atomicity => $4, idempotency_key => $5)`,
  [list, deduplication_key, duration(deduplication_ttl, 'deduplication_ttl'), atomicity, idempotency_key]);
}

function checkText(value, name) {
  if (value != null && (typeof value !== 'string' || value.includes('\0'))) {
    throw new TypeError(`${name} must be a text${typeof value === 'string' ? ' without \\u0000' : ''}`);
  }
}

const UUID = /^(\{[0-9a-f-]{32,38}\}|[0-9a-f-]{32,36})$/i;

// What is no id is the id of no job.
function checkId(id) {
  if (typeof id === 'string' && UUID.test(id) && id.replace(/[{}-]/g, '').length === 32) return id;
  const shown = typeof id === 'string' ? `"${id.slice(0, 100)}"`
    : id === null ? 'null' : `a value of type ${typeof id}`;
  const error = { message: `job ${shown} does not exist`, code: 'OJ300', hint: 'Give the id of a job, a UUID.' };
  throw new OjsError(error, { code: 'NOT_FOUND', retryable: false, details: { resource_type: 'job' } });
}

export const cancel = async (db, id) =>
  (await query(db, 'select state from ojs.cancel($1::text::uuid, idempotent => true)', [checkId(id)]))[0].state;

export const info = async (db, id) =>
  (await query(db, 'select ojs.info($1::text::uuid) as job', [checkId(id)]))[0].job;

export async function waitResult(db, id, timeout = 30) {
  const [row] = await query(db, `select state, result, error
    from ojs.wait_result($1::text::uuid, timeout => $2::text::interval)`, [checkId(id), duration(timeout, 'timeout')]);
  return row?.state ? row : undefined;
}
