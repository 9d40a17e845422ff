// canonical-documents.mjs: whole documents against an independent RFC 8785 library, and fingerprints of whole jobs.
import { createHash } from 'node:crypto';
import canonicalize from 'canonicalize';
import { compare, randomDouble } from './lib.mjs';
import { randomText } from './canonical-unicode.mjs';

const BATCH = 500;

function randomNumber(random) {
    return random.chance(0.5) ? random.between(-1000, 1000) : randomDouble(random);
}

// Decimals and integers that a hashed dimension may hold.
function exactNumber(random) {
    return random.chance(0.5) ? random.between(-(2 ** 31), 2 ** 31) : random.between(-99999, 99999) / 1000;
}

function randomObject(random, depth, number) {
    const object = {};
    const seen = new Set();
    for (let n = random.below(6); n > 0; n--) {
        const key = randomText(random);
        if (seen.has(key.normalize('NFC')) || key === '__proto__')
            continue; // two keys that are one in NFC are refused, see test/pgtap/canonical.sql
        seen.add(key.normalize('NFC'));
        object[key] = randomValue(random, depth - 1, number);
    }
    return object;
}

function randomValue(random, depth, number) {
    switch (random.below(depth > 0 ? 8 : 5)) {
        case 0: return null;
        case 1: return random.chance(0.5);
        case 2: return number(random);
        case 3: case 4: return randomText(random);
        case 5: return Array.from({ length: random.below(5) }, () => randomValue(random, depth - 1, number));
        default: return randomObject(random, depth, number);
    }
}

// The same value with every string and key in NFC, for a library that knows RFC 8785 only.
function inNfc(value) {
    if (typeof value === 'string')
        return value.normalize('NFC');
    if (Array.isArray(value))
        return value.map(inNfc);
    if (value !== null && typeof value === 'object')
        return Object.fromEntries(Object.entries(value).map(([key, member]) => [key.normalize('NFC'), inNfc(member)]));
    return value;
}

// JSON text as different producers write it: with spaces, or with everything beyond ASCII escaped.
function written(random, value) {
    const text = JSON.stringify(value, null, random.pick([0, 0, 2]));
    return random.chance(0.3)
        ? text.replace(/[^\x00-\x7e]/g, c => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`)
        : text;
}

async function inBatches(database, call, count, next) {
    for (let done = 0; done < count; done += BATCH) {
        const texts = [], expected = [];
        for (let i = 0; i < Math.min(BATCH, count - done); i++) {
            const [text, answer] = next();
            texts.push(text);
            expected.push(answer);
        }
        const difference = await compare(database, call, texts, expected);
        if (difference !== null)
            return difference;
    }
    return null;
}

// A job with a valid policy, and the object that its fingerprint should be made of.
function randomJob(random) {
    const job = { type: random.pick(['email.send', 'report', 'image.resize-all']), args: [], unique: {} };
    const dimensions = { type: job.type };
    const keys = random.chance(0.5) ? ['type'] : [];
    const unlike = (name, list) => list.every(other => other.normalize('NFC') !== name.normalize('NFC'));
    const some = object => Object.keys(object).filter((key, i, all) => random.chance(0.5) && unlike(key,
        all.slice(0, i)));
    const respelled = key => key.normalize(random.pick(['NFC', 'NFD']));

    if (random.chance(0.5))
        job.queue = random.pick(['default', 'mail', 'a.b-c']);
    if (random.chance(0.5)) {
        keys.push('queue');
        dimensions.queue = job.queue ?? 'default';
    }
    if (random.chance(0.7)) {
        const value = randomObject(random, 3, exactNumber);
        job.args = random.chance(0.5) && Object.keys(value).length > 0 ? value // {} alone is refused as a driver's slip
            : [...Array.from({ length: random.below(3) }, () => randomText(random)), value,
                { [randomText(random)]: 1 }];
        keys.push('args');
        const chosen = some(value);
        if (chosen.length > 0)
            job.unique.args_keys = chosen.map(respelled);
        dimensions.args = chosen.length > 0 ? Object.fromEntries(chosen.map(key => [key, value[key]]))
            : Array.isArray(job.args) ? job.args : [job.args];
    }
    if (random.chance(0.5)) {
        job.meta = randomObject(random, 2, exactNumber);
        const chosen = some(job.meta);
        const absent = `absent ${random.below(10)}`;
        if (chosen.length === 0 || random.chance(0.2))
            chosen.push(absent);
        keys.push('meta');
        job.unique.meta_keys = chosen.map(respelled);
        dimensions.meta = Object.fromEntries(chosen.map(key => [key, job.meta[key] ?? null]));
    }
    if (keys.length > 0)
        job.unique.keys = keys.sort(() => random.below(3) - 1);
    return [job, canonicalize(inNfc(dimensions))];
}

export async function documents(tap, database, random, { count, note }) {
    tap.result(await inBatches(database, 'ojs.canonical_json(v)', count, () => {
        const value = randomValue(random, 5, randomNumber);
        return [written(random, value), canonicalize(inNfc(value))];
    }), `UNQ-09 documents: ${count} random documents equal those of an RFC 8785 library${note}`);

    tap.result(await inBatches(database, "ojs.fingerprint_input(v) || ' ' || ojs.fingerprint(v)", count, () => {
        const [job, text] = randomJob(random);
        return [written(random, job), `${text} ${createHash('sha256').update(text).digest('hex')}`];
    }), `UNQ-10 fingerprints: ${count} random jobs have the input and the SHA-256 computed apart${note}`);
}
