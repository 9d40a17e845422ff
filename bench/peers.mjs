// peers.mjs SYSTEM SOCKET_DIR PORT TEMPLATE_DB SCRATCH_DB OUT: prepares a peer from npm for bench/client.
// Lets the library make its own schema in both databases, then works a few jobs through its public calls in the
// scratch one and writes down the statements that it sends: those are what is measured. Nothing of a peer's code is
// kept in this repository. Run from a folder whose node_modules has the packages.
import fs from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const [system, host, port, templateDb, scratchDb, out] = process.argv.slice(2);
const require = createRequire(pathToFileURL(path.join(process.cwd(), 'package.json')));
const pg = require('pg');
const base = { host, port: Number(port), user: process.env.PGUSER || 'postgres' };
const payload = { mark: 'OJS-BENCH' };
const marked = JSON.stringify(payload);
const sizes = [1, 10, 100];

let log = null;
const query = pg.Client.prototype.query;
pg.Client.prototype.query = function (first, ...rest) {
    if (log && first) {
        if (typeof first === 'string') log.push({ text: first, values: Array.isArray(rest[0]) ? rest[0] : [] });
        else if (first.text) log.push({ text: first.text, values: first.values || [] });
    }
    return query.call(this, first, ...rest);
};

async function record(action) {
    log = [];
    try {
        await action();
        return log;
    } finally {
        log = null;
    }
}

const literal = value => {
    if (value === null || value === undefined) return 'null';
    if (Array.isArray(value)) return `const {${value.join(',')}}`;
    return `const ${typeof value === 'object' ? JSON.stringify(value) : value}`;
};

// What the client must send for a value the library sent: its job ids, our payload, or the same again.
function source(value, ids) {
    const list = Array.isArray(value) ? value.map(String) : null;
    if (list && list.length && list.every(item => ids.includes(item))) return 'ids';
    if (!list && ids.includes(String(value))) return 'id';
    const text = typeof value === 'object' && value !== null && !list ? JSON.stringify(value) : value;
    if (typeof text === 'string' && text.includes(marked)) {
        const parsed = JSON.parse(text);
        if (!Array.isArray(parsed)) return `payload ${text.replace(marked, '%s')}`;
        return `array ${JSON.stringify(parsed[0]).replace(marked, '%s')}`;
    }
    return literal(value);
}

const found = [];
function keep(name, statements, wanted, ids = []) {
    const hit = statements.find(statement => wanted.test(statement.text));
    if (!hit) throw new Error(`${system}: no statement for ${name} among\n${statements.map(s => s.text).join('\n')}`);
    const params = hit.values.map(value => `-- $ ${source(value, ids)}`);
    const text = hit.text.split('\n').filter(line => line.trim()).join('\n').replace(/;\s*$/, '');
    found.push([`-- @${name}`, ...params, text].join('\n'));
}

async function pgBoss() {
    const { PgBoss } = await import(pathToFileURL(require.resolve('pg-boss')));
    const open = async database => {
        const boss = new PgBoss({ ...base, database, schedule: false, supervise: false });
        boss.on('error', error => console.error(error));
        await boss.start();
        await boss.createQueue('bench');
        return boss;
    };
    await (await open(templateDb)).stop({ graceful: false });
    const boss = await open(scratchDb);
    await boss.send('bench', payload);
    keep('push', await record(() => boss.send('bench', payload)), /insert into/i);
    keep('push_many', await record(() => boss.insert('bench', Array.from({ length: 500 }, () => ({ data: payload })))),
        /insert into/i);
    for (const size of sizes) {
        let jobs;
        const claim = await record(async () => { jobs = await boss.fetch('bench', { batchSize: size }); });
        const ids = jobs.map(job => job.id);
        keep(size === 1 ? 'claim' : `claim_${size}`, claim, /skip locked/i);
        const ack = await record(() => boss.complete('bench', size === 1 ? ids[0] : ids));
        if (size === 1) keep('ack', ack, /update/i, ids);
        if (size === 100) keep('ack_many', ack, /update/i, ids);
    }
    await boss.stop({ graceful: false });
}

async function graphile() {
    const { makeWorkerUtils, run } = await import(pathToFileURL(require.resolve('graphile-worker')));
    const quiet = { scope: () => quiet, error: console.error, warn() {}, info() {}, debug() {} };
    const pool = database => new pg.Pool({ ...base, database, max: 8 });
    const setUp = async database => {
        const pgPool = pool(database);
        const utils = await makeWorkerUtils({ pgPool, logger: quiet });
        await utils.migrate();
        // A worker registers its task names when it starts.
        await (await run({ pgPool, logger: quiet, noHandleSignals: true,
            taskList: { 'email.send': () => {} } })).stop();
        return { pgPool, utils };
    };
    const template = await setUp(templateDb);
    await template.utils.release();
    await template.pgPool.end();
    const { pgPool, utils } = await setUp(scratchDb);
    keep('push', await record(() => utils.addJob('email.send', payload)), /add_job/);
    keep('push_many', await record(() => utils.addJobs(
        Array.from({ length: 500 }, () => ({ identifier: 'email.send', payload })))), /add_jobs/);
    for (const size of sizes) {
        const ids = [];
        let left = size * 2, finish;
        const worked = new Promise(resolve => { finish = resolve; });
        const task = (_, { job }) => { ids.push(String(job.id)); if (--left === 0) finish(); };
        const worker = size === 1 ? { concurrentJobs: 1 }
            : { concurrentJobs: size, localQueue: { size, ttl: 60000 }, completeJobBatchDelay: 20 };
        const statements = await record(async () => {
            const runner = await run({
                noHandleSignals: true, taskList: { 'email.send': task },
                preset: { worker: { pgPool, ...worker } }, pgPool, logger: quiet,
            });
            await worked;
            await runner.stop();
        });
        keep(size === 1 ? 'claim' : `claim_${size}`, statements,
            new RegExp(`limit ${size}\\s+for update\\s+skip locked`));
        if (size === 1) keep('ack', statements, /^delete from/, ids);
        if (size === 100) keep('ack_many', statements, /^delete from[^]*unnest/, ids);
    }
    await utils.release();
    await pgPool.end();
    found.push('-- @listen\nlisten "jobs:insert"');
}

await { 'pg-boss': pgBoss, 'graphile-worker': graphile }[system]();
fs.writeFileSync(out, found.join('\n\n') + '\n');
process.exit(0);
