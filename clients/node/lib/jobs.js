// jobs.js: producing jobs. `db` is whatever has the query() of pg: a Pool, a Client, or a client within a transaction.
import { query } from './errors.js';
import { withTrace } from './trace.js';

// A job as the JSON envelope of the specification. JSON.stringify() leaves out what is undefined, and writes dates.
function envelope({ options, ...job }) {
  const meta = withTrace(job.meta);
  return { args: [], ...job, ...options, ...(meta && { meta }) };
}

export async function push(db, type, args = [], options = {}) {
  const job = JSON.stringify(envelope({ ...options, type, args }));
  return (await query(db, 'select ojs.push_job($1) as job', [job]))[0].job;
}

export function pushMany(db, jobs, options = {}) {
  const { atomicity = 'atomic', idempotency_key, deduplication_key, deduplication_ttl } = options;
  return query(db, `select index, id, status, error
    from ojs.push_many($1, $2, $3::interval, atomicity => $4, idempotency_key => $5)`,
  [JSON.stringify(jobs.map(envelope)), deduplication_key, deduplication_ttl, atomicity, idempotency_key]);
}

export const cancel = async (db, id) =>
  (await query(db, 'select state from ojs.cancel($1, idempotent => true)', [id]))[0].state;

export const info = async (db, id) => (await query(db, 'select ojs.info($1) as job', [id]))[0].job;

export async function waitResult(db, id, timeout = '30 s') {
  const [row] = await query(db, 'select state, result, error from ojs.wait_result($1, timeout => $2)', [id, timeout]);
  return row?.state ? row : undefined;
}
