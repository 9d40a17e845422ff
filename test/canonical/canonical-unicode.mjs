// canonical-unicode.mjs: NFC and key order against this machine's ECMAScript, and the random text of the other checks.
import { compare } from './lib.mjs';

// Blocks of Unicode 15 and later that hold compositions: a server with older tables rightly leaves them alone.
const NEW_BLOCKS = [[0x105C0, 0x105FF], [0x11380, 0x113FF], [0x11F00, 0x11F5F], [0x16100, 0x1613F], [0x16D40, 0x16D7F]];
const isNew = c => NEW_BLOCKS.some(([first, last]) => c >= first && c <= last);
const isText = c => c !== 0 && !(c >= 0xD800 && c <= 0xDFFF) && !isNew(c);

// Ranges where something happens in NFC or in the order of UTF-16; all older than Unicode 10.
const RANGES = [
    [0x20, 0x7E], [0x20, 0x7E], [0x20, 0x7E], [0x01, 0x1F], [0x7F, 0xFF], [0x100, 0x17F], [0x300, 0x34F], [0x300,
        0x34F],
    [0x374, 0x375], [0x37E, 0x37E], [0x387, 0x3CE], [0x591, 0x5BD], [0x64B, 0x655], [0x915, 0x94D], [0x958, 0x95F],
    [0x9C7, 0x9CD], [0xF71, 0xF84], [0x1100, 0x1112], [0x1161, 0x1175], [0x11A7, 0x11C2], [0x1E00, 0x1EFF],
    [0x1F00, 0x1F15], [0x2028, 0x2029], [0x2126, 0x212B], [0x304B, 0x309A], [0x4E00, 0x4E20], [0xAC00, 0xAC40],
    [0xE000, 0xE010], [0xF900, 0xFA0D], [0xFB1D, 0xFB4E], [0xFFE0, 0xFFE6], [0x10000, 0x10010], [0x11099, 0x110BA],
    [0x1D15E, 0x1D164], [0x1F600, 0x1F64F], [0x20000, 0x20010], [0x2F800, 0x2FA1D], [0x10FFF0, 0x10FFFD],
];

export function randomText(random) {
    let text = '';
    for (let n = random.below(random.chance(0.1) ? 30 : 6); n > 0; n--) {
        const [first, last] = random.pick(RANGES);
        text += String.fromCodePoint(random.between(first, last));
    }
    return text;
}

async function strings(database, all) {
    for (let i = 0; i < all.length; i += 4096) {
        const some = all.slice(i, i + 4096);
        const difference = await compare(database, 'ojs.canonical_json(v)', some.map(s => JSON.stringify(s)),
            some.map(s => JSON.stringify(s.normalize('NFC'))));
        if (difference !== null)
            return difference;
    }
    return null;
}

export async function unicode(tap, database, random, { count, note }) {
    const all = [];
    for (let c = 0; c < 0x30000; c++)
        if (isText(c))
            all.push(c);
    tap.result(await strings(database, all.map(c => String.fromCodePoint(c))),
        `UNQ-09 strings: each of ${all.length} code points alone`);

    const changing = all.map(c => String.fromCodePoint(c)).filter(s => s.normalize('NFD') !== s);
    tap.result(await strings(database, changing.flatMap(s => [
        s.normalize('NFD'), [...s.normalize('NFD')].reverse().join(''), `${s}\u0323\u0301`, `a\u0301${s}`])),
    `UNQ-11 strings: ${changing.length} decomposed characters, in order and out of it`);

    const texts = Array.from({ length: count }, () => randomText(random));
    tap.result(await strings(database, texts), `UNQ-11 strings: ${count} random texts${note}`);

    // Long text is normalised in pieces: with sentences without one ASCII character among them.
    const long = Array.from({ length: 40 }, () => {
        const sentence = Array.from({ length: random.between(2, 60) }, () => randomText(random)).join('');
        return sentence.repeat(random.between(1, 40)).replace(random.chance(0.5) ? /[\x00-\x7f]/g : /$^/, '');
    });
    tap.result(await strings(database, long), `UNQ-11 strings: ${long.length} long texts${note}`);

    const keys = [...new Set(texts.map(s => s.normalize('NFC')))].slice(0, 5000);
    tap.result(await compare(database, 'ojs.canonical_json(v)',
        [JSON.stringify(Object.fromEntries(keys.map(key => [`${key}.`, 1])))],
        [`{${keys.map(key => `${key}.`).sort().map(key => `${JSON.stringify(key)}:1`).join(',')}}`]),
    `UNQ-09 keys: ${keys.length} keys stand in the order of UTF-16 code units${note}`);
}
