#!/usr/bin/env node
// test/clients/transactions.mjs: how a push joins a transaction of another library, as docs/how-to/clients.md has it.
// Prints TAP. Needs a database with the extension, by PGHOST and so on, and runs in a folder in whose node_modules the
// libraries are (test/clients/transactions). One that is not there is left out by name.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import path from 'node:path';
import { test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { info, push } from '../../clients/node/index.js';

const require = createRequire(pathToFileURL(path.join(process.cwd(), 'package.json')));
const pg = require('pg');
const pool = new pg.Pool();
test.after(() => pool.end());
const { PGHOST: host, PGPORT: port = 5432, PGUSER: user, PGDATABASE: database } = process.env;
const back = new Error('roll back');
const type = 'email.send';
const args = [{ to: 'ada@example.org', 'a key': ['é', "it's", 1.5, null] }];
const queue = 'transactions';
const json = JSON.stringify({ type, args, queue });

// Each opens a transaction, runs `inside` with its handle, and ends it.
const libraries = {
  async knex(name) {
    const knex = require(name)({ client: 'pg', connection: { host, port: Number(port), user, database } });
    return {
      transaction: (inside) => knex.transaction(inside),
      push: async (trx) => (await trx.raw('select ojs.push_job(?) as job', [json])).rows[0].job,
      end: () => knex.destroy(),
    };
  },
  async 'drizzle-orm'(name) {
    const { drizzle } = require(`${name}/node-postgres`);
    const { sql } = require(name);
    const db = drizzle(pool);
    return {
      transaction: (inside) => db.transaction(inside),
      push: async (tx) => (await tx.execute(sql`select ojs.push_job(${json}) as job`)).rows[0].job,
    };
  },
  async typeorm(name) {
    const { DataSource } = require(name);
    const source = await new DataSource({ type: 'postgres', host, port: Number(port), username: user, database })
      .initialize();
    assert.equal((await push(source, type, args, { queue })).type, type);
    return {
      transaction: (inside) => source.transaction(inside),
      push: (manager) => push(manager, type, args, { queue }),
      end: () => source.destroy(),
    };
  },
  async kysely(name) {
    const { CompiledQuery, Kysely, PostgresDialect } = require(name);
    const db = new Kysely({ dialect: new PostgresDialect({ pool }) });
    return {
      transaction: (inside) => db.transaction().execute(inside),
      push: (trx) => push({ query: (text, values) => trx.executeQuery(CompiledQuery.raw(text, values)) }, type, args,
        { queue }),
    };
  },
  async postgres(name) {
    const sql = require(name)({ host, port: Number(port), user, database });
    return {
      transaction: (inside) => sql.begin(inside),
      push: (tx) => push({ query: (text, values) => tx.unsafe(text, values) }, type, args, { queue }),
      end: () => sql.end(),
    };
  },
};

for (const [name, open] of Object.entries(libraries)) {
  let there = true;
  try {
    require.resolve(name);
  } catch {
    there = false;
  }
  test(`a push joins a transaction of ${name}`, { skip: !there && `npm could not install ${name}` }, async () => {
    const library = await open(name);
    let committed, rolledBack;
    await library.transaction(async (handle) => {
      committed = await library.push(handle);
      await assert.rejects(info(pool, committed.id), { code: 'NOT_FOUND' }, 'seen before the commit');
    });
    assert.deepEqual((await info(pool, committed.id)).args, args);
    await assert.rejects(library.transaction(async (handle) => {
      rolledBack = await library.push(handle);
      throw back;
    }), back);
    await assert.rejects(info(pool, rolledBack.id), { code: 'NOT_FOUND' });
    await library.end?.();
  });
}
