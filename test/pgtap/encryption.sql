-- encryption.sql: arguments that a codec has encoded: kept as they are, and encoded by hooks: ENV-22, INT-01.
-- Runs once: nothing here asks whether ojs was preloaded.
begin;
select no_plan();
\ir helpers.psql

-- A client that encodes: what it sent comes back, byte for byte, wherever the job goes.
\set encoded '[{"ojs_encoded": true, "encoding": "binary/encrypted+zstd", "data": "AQAAABR/+w=="}]'
\set codec '{"ojs.codec.encodings": ["zstd/plain", "binary/encrypted"], "ojs.codec.key_id": "key-2026-02"}'
select id from ojs.push('pay', :'encoded', queue => 'e', meta => :'codec') \gset
select is(args, :'encoded'::jsonb, 'encoded arguments are handed out as they came (ENV-22)') from ojs.claim('e', 'w');
select is(meta, :'codec'::jsonb, 'and so is what the codec says in meta (ENV-22)') from ojs.jobs where id = :'id';
select ojs.fail(:'id', '{"type": "later", "message": "later"}') \g /dev/null
select ojs.retry(:'id') \g /dev/null
select is(args::text || meta::text, :'encoded'::jsonb::text || :'codec'::jsonb::text, 'after a retry, too (ENV-22)')
from ojs.claim('e', 'w');
select is(ojs.info(:'id') -> 'args', :'encoded'::jsonb, 'and in ojs.info (ENV-22)');

-- The server encodes: a hook at the push, and one at the claim.
create schema codec;
create function codec.encode(job jsonb) returns jsonb language sql as $$
    select jsonb_set(job, '{args}', jsonb_build_array(jsonb_build_object('ojs_encoded', true,
        'encoding', 'binary/reversed', 'data', encode(convert_to(reverse(job ->> 'args'), 'UTF8'), 'base64'))))
$$;
create function codec.decode(job jsonb) returns jsonb language sql as $$
    select case when job #> '{args,0,ojs_encoded}' = 'true'
        then jsonb_set(job, '{args}', reverse(convert_from(decode(job #>> '{args,0,data}', 'base64'), 'UTF8'))::jsonb)
        else job end
$$;
select ojs.register_hook('encode', 'enqueue', 'codec.encode(jsonb)') \g /dev/null
select ojs.register_hook('decode', 'before_execute', 'codec.decode(jsonb)') \g /dev/null
select id from ojs.push('pay', '["4111 1111"]', queue => 'h', "unique" => '{}') \gset
select is(args #> '{0,ojs_encoded}', 'true', 'a hook encodes what is stored (INT-01)') from ojs.jobs where id = :'id';
select is((select count(*) from ojs_store.job j where j::text ~ '4111'), 0::bigint,
    'nothing else is kept (INT-01)');
select is(args, '["4111 1111"]', 'a hook decodes it for its worker (INT-01)') from ojs.claim('h', 'w');
select is(left(pg_temp.refusal($$select ojs.push('pay', '["4111 1111"]', queue => 'h', "unique" => '{}')$$), 5),
    'OJ301',
    'and the same arguments are the same job (INT-01)');

select * from finish();
rollback;
