// json.js: JSON that jsonb can hold.

const UNPAIRED = /[\ud800-\udfff]/u; // with the flag u, a pair is one character
const UNSTORABLE = /[\0\ud800-\udfff]/gu;

/** A text in which U+FFFD stands for what jsonb cannot hold. */
export const storable = (text) => text.replace(UNSTORABLE, '\ufffd');

/** Any value as a text, whatever its own methods do. */
export function shown(value) {
  try {
    return storable(String(value));
  } catch {
    return `a value of type ${typeof value} that cannot be shown`;
  }
}

// JSON writes null for some values, and leaves out others.
function lostInJson(value) {
  if (typeof value === 'number' && !Number.isFinite(value)) return `${value} is no JSON`;
  if (typeof value === 'bigint') return `${value}n is a BigInt, which is no JSON`;
  if (typeof value === 'string' && value.includes('\0')) return '\\u0000 cannot be stored by PostgreSQL';
  if (typeof value === 'string' && UNPAIRED.test(value)) return 'half of a surrogate pair is no text';
  return undefined;
}

/** JSON of a value; throws where it cannot be written, or would be another value. `what` it is, for the message. */
export function toJson(value, what) {
  let lost;
  let text;
  try {
    text = JSON.stringify(value, function check(key, written) {
      lost ??= lostInJson(key) ?? lostInJson(written);
      if (written === null && isA(this[key], Date)) lost ??= 'an invalid Date is no JSON';
      if ((typeof written === 'function' || typeof written === 'symbol') && (key === '' || Array.isArray(this))) {
        lost ??= `a ${typeof written} is no JSON`;
      }
      return lost ? null : written;
    });
    if (text === undefined && value !== undefined) lost = 'it is none';
  } catch (error) {
    lost ??= isA(error, Error) ? shown(get(error, 'message')).split('\n')[0] : shown(error);
  }
  if (lost) throw new TypeError(`${what} cannot be stored as JSON: ${lost}`);
  return text;
}

/** value[name], or undefined where that throws. */
export function get(value, name) {
  try {
    return value?.[name];
  } catch {
    return undefined;
  }
}

export function isA(value, type) {
  try {
    return value instanceof type;
  } catch { // a Proxy
    return false;
  }
}

const DEEPEST = 16;
const MOST = 1000; // values
const LONGEST = 10_000; // characters of a text

/** The likeness of any value that can be written as JSON, and read: nothing in it throws, and it has an end. */
export function likeness(value, above = [], room = { left: MOST }) {
  if (value === null || typeof value === 'boolean' || value === undefined) return value;
  if (typeof value === 'number') return Number.isFinite(value) ? value : String(value);
  if (typeof value !== 'object') return shown(value).slice(0, LONGEST);
  if (above.includes(value)) return '[circular]';
  if (above.length >= DEEPEST || room.left <= 0) return '[and so on]';
  const inner = [...above, value];
  const copy = (it) => (room.left-- > 0 ? likeness(it, inner, room) : undefined);
  try {
    if (isA(value, Date)) return shown(value.toJSON());
    if (isA(value, Error)) {
      return { type: shown(get(value, 'name')), message: shown(get(value, 'message')) };
    }
    if (Array.isArray(value)) {
      return Array.from({ length: Math.min(value.length, MOST) }, (_, i) => copy(get(value, i)));
    }
    const names = Object.keys(value).slice(0, MOST);
    return Object.fromEntries(names.map((name) => [storable(name), copy(get(value, name))]));
  } catch {
    return '[unreadable]';
  }
}
