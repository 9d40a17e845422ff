// peers.mjs PEER DATABASE NUMBER: lets a peer from npm make its schema and push so many jobs through its own library:
// one is held by a worker of it, one is due in an hour. Run from a folder whose node_modules has the packages.
// Exits with 3 if this Node.js is too old for the peer.
import { createRequire } from 'node:module';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const [peer, database, number] = process.argv.slice(2);
const require = createRequire(pathToFileURL(path.join(process.cwd(), 'package.json')));
const connection = { host: process.env.PGHOST, port: Number(process.env.PGPORT), user: process.env.PGUSER, database };
const numbers = Array.from({ length: Number(number) }, (_, n) => n);
const inAnHour = new Date(Date.now() + 3600_000);

const load = async (name) => {
    try {
        return await import(pathToFileURL(require.resolve(name)));
    } catch (error) {
        console.error(`${name} cannot be loaded by Node.js ${process.versions.node}: ${error.message}`);
        process.exit(3);
    }
};

if (peer === 'pg-boss') {
    const { PgBoss } = await load('pg-boss');
    const boss = new PgBoss({ ...connection, supervise: false, schedule: false });
    boss.on('error', problem => console.error(problem));
    await boss.start();
    await boss.createQueue('Mail_out');
    await boss.send('Mail_out', { held: true }, { priority: 9 });
    await boss.fetch('Mail_out');
    await boss.insert('Mail_out', numbers.map(n => ({ data: { n }, priority: n % 3, retryLimit: 5 })));
    await boss.send('Mail_out', { later: true }, { startAfter: inAnHour });
    await boss.stop({ graceful: false });
} else {
    const { makeWorkerUtils } = await load('graphile-worker');
    const { Pool } = require('pg');
    const pgPool = new Pool(connection);
    pgPool.on('error', () => {});
    pgPool.on('connect', client => client.on('error', () => {}));
    const utils = await makeWorkerUtils({ pgPool });
    await utils.migrate();
    const held = await utils.addJob('sendMail', { held: true });
    const jobs = numbers.map(n => ({ identifier: 'sendMail', payload: { n }, maxAttempts: 6, priority: n % 3 }));
    await utils.addJobs(jobs);
    await utils.addJob('sendMail', { later: true }, { runAt: inAnHour, queueName: 'Serial_1', jobKey: 'k' });
    // As its worker does when it takes a job.
    const take = 'update graphile_worker._private_jobs set locked_at = now(), attempts = 1 where id = $1';
    await pgPool.query(take, [held.id]);
    await utils.release();
}
process.exit(0);
