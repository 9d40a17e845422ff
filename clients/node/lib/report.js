// report.js: what a handler threw, as ojs.fail() takes it. There is a report of anything, and it can be stored.
import { JobAborted, JobError } from './errors.js';
import { get, isA, likeness, shown, toJson } from './json.js';
import { duration } from './options.js';

const LONGEST_TYPE = 255;
const LONGEST_TEXT = 10_000;
const MOST_FRAMES = 50;
const OWN = new URL('.', import.meta.url).href; // the frames of this library
const OWN_PATH = decodeURIComponent(new URL('.', import.meta.url).pathname);

const text = (value) => (value === undefined ? '' : shown(value).slice(0, LONGEST_TEXT));

function typeOf(thrown) {
  if (isA(thrown, JobError)) return text(get(thrown, 'type'));
  if (isA(thrown, JobAborted)) return text(get(thrown, 'reason'));
  const name = get(thrown, 'name');
  const code = get(thrown, 'code');
  return text(['Error', 'error', 'OjsError'].includes(name) && typeof code === 'string' ? code : name);
}

// The frames of a stack, without those of this library that are under the caller's.
function frames(thrown) {
  const stack = get(thrown, 'stack');
  if (typeof stack !== 'string') return [];
  const all = shown(stack).split('\n').map((line) => line.trim()).filter((line) => /^at /.test(line));
  const isOurs = (line) => line.includes(OWN) || line.includes(OWN_PATH) || /\bnode:internal\/|\(node:/.test(line);
  let end = all.length;
  while (end > 0 && isOurs(all[end - 1])) end--;
  return all.slice(0, end || all.length);
}

// What led to it: its causes, and the errors of an AggregateError.
function behind(thrown) {
  const cause = get(thrown, 'cause');
  const errors = get(thrown, 'errors');
  return [...(cause == null ? [] : [cause]), ...(Array.isArray(errors) ? errors.slice(0, 5) : [])];
}

function backtrace(thrown) {
  const lines = frames(thrown);
  const told = [thrown];
  for (let next = behind(thrown); next.length > 0 && told.length < 10;) {
    const [one, ...others] = next;
    if (!told.includes(one)) {
      told.push(one);
      const [headline] = `caused by ${typeOf(one) || typeof one}: ${messageOf(one)}`.split('\n');
      lines.push(headline, ...frames(one).slice(0, 10));
      others.push(...behind(one));
    }
    next = others;
  }
  return lines.slice(0, MOST_FRAMES).map((line) => line.slice(0, 1000));
}

function messageOf(thrown) {
  if (isA(thrown, Error) || typeof get(thrown, 'message') === 'string') return text(get(thrown, 'message'));
  const isObject = thrown !== null && typeof thrown === 'object';
  return isObject ? JSON.stringify(likeness(thrown)) : shown(thrown).slice(0, LONGEST_TEXT);
}

/**
 * Returns { type, message, delay, versions, ignored }: the error as JSON, complete first, and then what can be stored
 * whatever the server says of the first; and what of a JobError makes no sense.
 */
export function report(thrown) {
  const type = typeOf(thrown).slice(0, LONGEST_TYPE) || 'Error';
  const message = messageOf(thrown) || type;
  const ignored = [];
  const more = {};
  let delay = null;
  if (isA(thrown, JobError)) {
    const retryable = get(thrown, 'retryable');
    if (typeof retryable === 'boolean') more.retryable = retryable;
    else if (retryable != null) ignored.push(`retryable must be a boolean, not ${shown(retryable).slice(0, 100)}`);
    try {
      delay = duration(get(thrown, 'delay'), 'delay');
    } catch (error) {
      ignored.push(error.message);
    }
  }
  const short = JSON.stringify({ type, message: message.slice(0, 1000), ...more });
  const whole = { type, message, backtrace: backtrace(thrown), ...more };
  return { type, message, delay, ignored, versions: [JSON.stringify({ ...whole, details: details(thrown) }), short] };
}

function details(thrown) {
  const given = isA(thrown, JobError) ? get(thrown, 'details') : undefined;
  try {
    return given === undefined ? undefined : JSON.parse(toJson(given, 'details'));
  } catch {
    return likeness(given);
  }
}
