// options.js: the names and the times that callers give.

const words = (text) => text.trim().split(/\s+/);

/** The attributes of a job that a caller may give (src/job/attribute_names.cpp). */
export const ATTRIBUTES = words(`
  args dedup_fallback deduplicationFallback deduplicationKey deduplicationTtl deduplication_key deduplication_ttl
  deduplication_ttl_ms delay delay_ms delay_until delivery enqueue_ttl expires_at grace_period heartbeat_timeout id
  max_attempts meta metadata options ordering orderingKey ordering_key parent_id pending priority queue rate_limit
  result_ttl retry root_id scheduled_at schema specversion tag tags taskDeduplicationFallback taskDeduplicationTtl
  timeout timeout_ms total_timeout type unique version visibility_timeout visibility_timeout_ms`);

/** Those that the server gives, which are in each envelope that it answers. */
export const OF_SERVER = words(`
  activated_at attempt cancelled_at checkpoint completed_at created_at deduplicated deduplication_expires_at deliveries
  discarded_at enqueued_at error errors last_checkpoint lease_expires_at lease_id next_attempt_at parent_errors
  parent_results parent_results_truncated previous_state progress progress_data progress_message progress_updated_at
  result result_expires_at result_size_bytes result_stored_at retry_delay_ms seq started_at state worker
  workflow_callback workflow_id workflow_root_id workflow_step`);

// Words of other queues for the same.
const ELSEWHERE = {
  attempts: 'max_attempts', backoff: 'retry', countdown: 'delay', eta: 'scheduled_at', job_id: 'id', jobid: 'id',
  max_retries: 'max_attempts', retries: 'max_attempts', run_at: 'scheduled_at', start_after: 'delay',
};

const folded = (name) => name.replace(/[_-]/g, '').toLowerCase();

// Equal, or but for one letter that is another, missing or too much.
function nearlyEqual(a, b) {
  let same = 0;
  while (same < Math.min(a.length, b.length) && a[same] === b[same]) same++;
  const [restA, restB] = [a.slice(same), b.slice(same)];
  return restA.slice(1) === restB.slice(1) || restA.slice(1) === restB || restA === restB.slice(1);
}

/** Refuses names that are not known: `what` they are of, `way` out where there is one. */
export function checkNames(given, known, what, { also = [], way = '' } = {}) {
  if (given === null || typeof given !== 'object' || Array.isArray(given)) {
    throw new TypeError(`${what} must be an object of options`);
  }
  for (const name of Object.keys(given)) {
    if (known.includes(name) || also.includes(name)) continue;
    const short = folded(name);
    const meant = known.find((it) => folded(it) === short)
      ?? Object.entries(ELSEWHERE).find(([word, it]) => folded(word) === short && known.includes(it))?.[1]
      ?? known.find((it) => nearlyEqual(folded(it), short));
    throw new TypeError(`${what}: "${name}" is not known${meant ? `: is it ${meant}?` : ''}${way}`);
  }
}

const UNITS = [ // seconds or months, and the unit's names
  [0.001, 0, /^(ms|msecs?|milliseconds?)$/], [1, 0, /^(s|secs?|seconds?)$/], [60, 0, /^(m|mins?|minutes?)$/],
  [3600, 0, /^(h|hrs?|hours?)$/], [86_400, 0, /^(d|days?)$/], [604_800, 0, /^(w|weeks?)$/],
  [0, 1, /^(mons?|months?)$/], [0, 12, /^(y|yrs?|years?)$/],
];
const PART = /\s*(?:(\d+(?:\.\d+)?|\.\d+)\s*([a-z]+)|(\d+):([0-5]?\d)(?::([0-5]?\d(?:\.\d+)?))?)\s*/gy;
const ISO = /^\+?P(?!$)(?:(N)Y)?(?:(N)M)?(?:(N)W)?(?:(N)D)?(?:T(?!$)(?:(N)H)?(?:(N)M)?(?:(N)S)?)?$/.source;
const ISO_8601 = new RegExp(ISO.replaceAll('N', '\\d+(?:[.,]\\d+)?'), 'i');

function readIso(text) {
  const found = ISO_8601.exec(text);
  if (!found) return undefined;
  const [years, months, ...rest] = found.slice(1).map((it) => Number((it ?? '0').replace(',', '.')));
  const seconds = [604_800, 86_400, 3600, 60, 1].reduce((sum, unit, i) => sum + unit * rest[i], 0);
  return { months: 12 * years + months, seconds };
}

function readInterval(text) {
  const total = { months: 0, seconds: 0 };
  PART.lastIndex = 0;
  while (PART.lastIndex < text.length) {
    const [, number, unit, hours, minutes, seconds] = PART.exec(text) ?? [];
    const [each, months] = UNITS.find(([, , names]) => names.test(unit)) ?? [];
    if (hours !== undefined) total.seconds += hours * 3600 + minutes * 60 + Number(seconds ?? 0);
    else if (each === undefined || !Number.isInteger(months * number)) return undefined;
    else {
      total.seconds += each * number;
      total.months += months * number;
    }
  }
  return total;
}

// Seconds, ISO 8601, or an interval of PostgreSQL such as '1 hour 30 minutes'; undefined if it is no such time.
function read(value) {
  if (typeof value === 'number') return value >= 0 && value < 1e12 ? { months: 0, seconds: value } : undefined;
  if (typeof value !== 'string' && typeof value !== 'object') return undefined; // a Temporal.Duration reads as a text
  const text = String(value).trim();
  if (/^(\d+\.?\d*|\.\d+)$/.test(text)) return { months: 0, seconds: Number(text) };
  return text === '' ? undefined : readIso(text) ?? readInterval(text.toLowerCase());
}

function refuse(value, name) {
  let shown;
  try {
    shown = typeof value === 'string' ? JSON.stringify(value) : String(value);
  } catch {
    shown = `a ${typeof value}`;
  }
  throw new TypeError(`${name} must be a time, such as 30 (seconds), '30 s' or 'PT30S', not ${shown.slice(0, 100)}`);
}

const decimal = (seconds) => seconds.toFixed(6).replace(/\.?0+$/, '');

/** A time as an ISO 8601 duration, which the server reads everywhere; null for none. */
export function duration(value, name) {
  if (value == null) return null;
  const { months, seconds } = reading(value) ?? refuse(value, name);
  return `P${months ? `${months}M` : ''}${seconds || !months ? `T${decimal(seconds)}S` : ''}`;
}

/** A time in ms. */
export function milliseconds(value, name) {
  const { months, seconds } = reading(value) ?? refuse(value, name);
  return (months * 30 * 86_400 + seconds) * 1000;
}

function reading(value) {
  try {
    return read(value);
  } catch { // its toString() threw
    return undefined;
  }
}

const TIMES = ['delay', 'timeout', 'deduplication_ttl', 'enqueue_ttl', 'grace_period', 'heartbeat_timeout',
  'result_ttl', 'total_timeout', 'visibility_timeout', 'initial_interval', 'max_interval', 'period'];
const POLICIES = ['retry', 'unique', 'rate_limit', 'rate', 'throttle'];

/** Attributes with their times as ISO 8601. What is no time, the server refuses. */
export function withTimes(attributes, inPolicy = false) {
  const changed = {};
  for (const [name, value] of Object.entries(attributes)) {
    if (POLICIES.includes(name) && value && typeof value === 'object') changed[name] = withTimes(value, true);
    else if (TIMES.includes(name) && value !== null && (inPolicy || typeof value !== 'number') && reading(value)) {
      changed[name] = duration(value, name);
    }
  }
  return { ...attributes, ...changed };
}
