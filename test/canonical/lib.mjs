// lib.mjs: what the checks share: psql as a pipe, seeded random numbers, and a comparison of many answers at once.
import { spawn } from 'node:child_process';

// One psql session, by the environment's PGHOST, PGDATABASE and so on.
export class Database {
    constructor() {
        this.psql = spawn('psql', ['-XqAt', '-v', 'ON_ERROR_STOP=1'], { stdio: ['pipe', 'pipe', 'pipe'],
            env: { ...process.env, PGCLIENTENCODING: 'UTF8' } });
        this.output = [];
        this.tail = '';
        this.complaint = '';
        this.psql.stdout.setEncoding('utf8').on('data', chunk => this.#read(chunk));
        this.psql.stderr.setEncoding('utf8').on('data', chunk => { this.complaint += chunk; });
        this.psql.stdin.on('error', () => {}); // the exit says more
        this.psql.on('error', error => this.waiting?.reject(error));
        this.psql.on('close', () => this.waiting?.reject(new Error(`psql ended: ${this.complaint}`)));
    }

    #read(chunk) {
        this.output.push(chunk);
        this.tail = (this.tail + chunk).slice(-20);
        if (this.waiting && this.tail.endsWith('-- answered\n')) {
            const { resolve } = this.waiting;
            this.waiting = null;
            resolve(this.output.join('').slice(0, -'-- answered\n'.length));
            this.output = [];
            this.tail = '';
        }
    }

    // What `sql` prints, each row a line; values must not hold newlines.
    ask(sql) {
        return new Promise((resolve, reject) => {
            this.waiting = { resolve, reject };
            this.psql.stdin.write(`${sql};\n\\echo -- answered\n`);
        });
    }

    end() {
        this.waiting = null;
        this.psql.stdin.end();
    }
}

export const quote = text => `'${text.replaceAll("'", "''")}'`;

// A small fast generator (sfc32): the same seed gives the same run on every machine.
export class Random {
    constructor(seed) {
        this.state = [seed >>> 0, Math.floor(seed / 2 ** 32) >>> 0, 0x9E3779B9, 1];
        for (let i = 0; i < 15; i++)
            this.bits32();
    }

    bits32() {
        const s = this.state;
        const t = (s[0] + s[1] + s[3]) | 0;
        s[3] = (s[3] + 1) | 0;
        s[0] = s[1] ^ (s[1] >>> 9);
        s[1] = (s[2] + (s[2] << 3)) | 0;
        s[2] = ((s[2] << 21) | (s[2] >>> 11)) + t | 0;
        return t >>> 0;
    }

    below(n) { return Math.floor(this.bits32() / 2 ** 32 * n); }
    between(least, most) { return least + this.below(most - least + 1); }
    chance(p) { return this.bits32() < p * 2 ** 32; }
    pick(list) { return list[this.below(list.length)]; }
}

// The double with these 64 bits.
const view = new DataView(new ArrayBuffer(8));
export function doubleOf(high, low) {
    view.setUint32(0, high);
    view.setUint32(4, low);
    return view.getFloat64(0);
}

// A random finite double.
export function randomDouble(random) {
    for (;;) {
        const x = doubleOf(random.bits32(), random.bits32());
        if (Number.isFinite(x))
            return x;
    }
}

// Sends JSON texts through `call`, a function of the SQL value v, and compares the answers with those expected.
// Returns null, or what the first difference is.
export async function compare(database, call, texts, expected) {
    // COPY, since psql leaves noncharacters out of what it prints itself; it doubles backslashes.
    const rows = `select ${call} from jsonb_array_elements(${quote(`[${texts.join(',')}]`)}) as v`;
    const answer = (await database.ask(`copy (${rows}) to stdout`)).replaceAll('\\\\', '\\');
    if (answer === expected.join('\n') + '\n')
        return null;
    const got = answer.split('\n');
    const i = expected.findIndex((text, n) => text !== got[n]);
    return `input    ${texts[i]}\nexpected ${expected[i]}\ngot      ${got[i]}`;
}

// TAP.
export class Tap {
    count = 0;
    failed = 0;

    result(difference, name) {
        this.count++;
        if (difference !== null)
            this.failed++;
        console.log(`${difference === null ? 'ok' : 'not ok'} ${this.count} - ${name}`);
        if (difference !== null)
            console.log(difference.replace(/^/gm, '# '));
    }
}
