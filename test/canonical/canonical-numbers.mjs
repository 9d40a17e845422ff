// canonical-numbers.mjs: the number form of ojs.canonical_json against this machine's ECMAScript, double by double.
import { compare, doubleOf, randomDouble } from './lib.mjs';

const BATCH = 20000;

// A double near the places where the form changes: 1e-7, 1e21, powers of ten, integers, the ends of the range.
function notable(random) {
    switch (random.below(6)) {
        case 0: // exponents from 2^-30 to 2^80
            return doubleOf((random.chance(0.5) ? 0x80000000 : 0) | (random.between(1023 - 30, 1023 + 80) << 20) |
                random.below(2 ** 20), random.bits32());
        case 1: { // a few units beside a power of ten
            const x = Number(`1e${random.between(-323, 308)}`);
            return Number.isFinite(x) ? x + x * Number.EPSILON * random.between(-3, 3) : 1;
        }
        case 2: // subnormal
            return doubleOf(random.below(2 ** random.between(0, 20)), random.bits32());
        case 3: // a decimal of few digits
            return Number((random.chance(0.5) ? '-' : '')
                + `${random.below(10 ** random.between(1, 9))}e${random.between(-30, 30)}`);
        case 4: // an integer beyond 2^53
            return (random.bits32() * 2 ** 32 + random.bits32()) * 2 ** random.below(8);
        default: // a power of two, or beside one
            return doubleOf(random.below(2047) << 20, random.chance(0.5) ? 0 : 1) * (random.chance(0.5) ? -1 : 1);
    }
}

// One of the many ways to write a double: the shortest, 17 digits, and 100, which is the double's own value or close.
function written(x, n) {
    if (Object.is(x, -0))
        return '-0';
    return n % 64 === 0 ? x.toPrecision(100) : n % 4 === 1 ? x.toExponential(16) : String(x);
}

// An integer exactly between two doubles: reading it rounds to even.
function tie(random) {
    const shift = BigInt(random.between(1, 900));
    const odd = (2n ** 52n + BigInt(random.below(2 ** 20)) * 2n ** 32n + BigInt(random.bits32())) * 2n + 1n;
    return `${odd << (shift - 1n)}`;
}

async function inBatches(database, count, next) {
    for (let done = 0; done < count; done += BATCH) {
        const texts = [], expected = [];
        for (let i = 0; i < Math.min(BATCH, count - done); i++) {
            const [text, x] = next(done + i);
            texts.push(text);
            expected.push(JSON.stringify(x));
        }
        const difference = await compare(database, 'ojs.canonical_json(v)', texts, expected);
        if (difference !== null)
            return difference;
    }
    return null;
}

export async function numbers(tap, database, random, { count, note }) {
    tap.result(await inBatches(database, count, n => {
        const x = randomDouble(random);
        return [written(x, n), x];
    }), `UNQ-09 numbers: ${count} random bit patterns have ECMAScript's form${note}`);
    const few = Math.ceil(count / 4);
    tap.result(await inBatches(database, few, n => {
        const x = notable(random);
        return [written(x, n), x];
    }), `UNQ-09 numbers: ${few} doubles near the limits of the forms${note}`);
    const ties = Math.min(few, 2000);
    tap.result(await inBatches(database, ties, () => {
        const text = tie(random);
        return [text, Number(text)];
    }), `UNQ-09 numbers: ${ties} integers halfway between two doubles round to even${note}`);
}
