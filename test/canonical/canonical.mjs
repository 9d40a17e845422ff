// canonical.mjs [--count N] [--seed S]: all checks of canonical JSON and fingerprints, as TAP.
import { parseArgs } from 'node:util';
import { documents } from './canonical-documents.mjs';
import { numbers } from './canonical-numbers.mjs';
import { unicode } from './canonical-unicode.mjs';
import { Database, Random, Tap } from './lib.mjs';

const { values } = parseArgs({ options: { count: { type: 'string', default: '200000' }, seed: { type: 'string' } } });
const count = Number(values.count);
const seed = Number(values.seed ?? Date.now());
const options = { note: ` (seed ${seed})` };
const database = new Database();
const tap = new Tap();

await numbers(tap, database, new Random(seed), { ...options, count });
await unicode(tap, database, new Random(seed), { ...options, count: Math.ceil(count / 10) });
await documents(tap, database, new Random(seed), { ...options, count: Math.ceil(count / 50) });
console.log(`1..${tap.count}`);
database.end();
process.exitCode = tap.failed > 0 ? 1 : 0;
