-- queues.sql: settings of queues and what they do: Q-01 to Q-11, Q-17, Q-47 to Q-59, Q-68, Q-69, QC-01 to QC-04, QC-07,
-- QC-08.
begin;
select no_plan();
\ir helpers.psql

create function pg_temp.config_of(queue text, setting text) returns jsonb language sql as
$$ select ojs.queue_info(queue) -> 'config' -> setting $$;
create function pg_temp.set_to(setting text, value jsonb) returns jsonb language sql as
$$ select ojs.configure_queue('try', jsonb_build_object(setting, value)) -> 'config' -> setting $$;
create function pg_temp.refused(setting text, value text) returns text language sql as
$$ select pg_temp.refusal(format('select ojs.configure_queue(%L, %L)', 'try', format('{"%s": %s}', setting, value))) $$;
create function pg_temp.counts(queue text) returns text language sql as
$$ select concat_ws('/', ready, in_flight, delayed, scheduled, retryable, pending) from ojs.queue_stats(queue) $$;
create function pg_temp.claim_ids(queue text, n int default 1, worker text default 'w') returns uuid[] language sql as
$$ select coalesce(array_agg(id), '{}') from ojs.claim(queue, worker, n) $$;

-- Creation -----------------------------------------------------------------------------------------------------------

select is(q ->> 'name', 'mail', 'Q-01: create_queue answers with the queue'),
    is(q ->> 'state', 'active', 'QC-01: active at first'),
    is(q ->> 'type', 'queue', 'Q-02: a queue by default'),
        is(q -> 'config' -> 'lease_ms', '60000', 'Q-01: with its settings'),
    is(q -> 'config' -> 'max_deliveries', '0', 'Q-06: off by default'),
        is(q -> 'config' -> 'dead_letter', 'null', 'Q-07: none by default'),
    is(q -> 'config' -> 'claim_jitter_ms', '0', 'Q-05: 0 by default'),
        is(q -> 'config' -> 'leases_durable', 'false', 'Q-08: false by default'),
    is(q -> 'config' -> 'durable', 'true', 'Q-10: true by default'),
        is(q -> 'config' -> 'lease_log', 'false', 'Q-01: lease_log is off by default'),
    is(q -> 'config' -> 'discard', '"reject"', 'Q-09: reject by default'),
        is(q -> 'config' -> 'expiry_counts_attempt', 'true', 'R-17: counts by default'),
    is(q #> '{config,retention}', '{"completed": "P7D", "discarded": "P30D", "cancelled": "P7D"}',
        'QC-02: retention by default')
from ojs.create_queue('mail', '{"lease_ms": 60000}') q;
select is(config, '{"lease_ms": 60000}', 'Q-01: stored is what was set'),
    is(state, 'active', 'QC-07: the view shows the state'),
    ok(created_at between now() and clock_timestamp(), 'QC-07: and when it was created') from ojs.queues
        where name = 'mail';
select is(ojs.create_queue('mail', '{"max_deliveries": 4}') -> 'config' -> 'lease_ms', '60000',
    'Q-02: creating it again adds settings');
select is(pg_temp.config_of('mail', 'max_deliveries'), '4', 'Q-02: these');
select is(ojs.create_queue('mail', '{"type": "queue"}') ->> 'type', 'queue', 'Q-02: with an equal type');
select revised_at as revised from ojs_store.queue where name = 'mail' \gset
select ojs.create_queue('mail', '{"lease_ms": 60000, "max_deliveries": 4}'), ojs.resume_queue('mail') \g /dev/null
select is(revised_at, :'revised', 'writes no row where nothing changes (Q-02)') from ojs_store.queue
    where name = 'mail';
select is(pg_temp.refusal($$ select ojs.create_queue('mail', '{"type": "log"}') $$),
    'OJ313 TOPIC_EXISTS_INCOMPATIBLE type', 'Q-02: not with another');
select is(pg_temp.refusal($$ select ojs.configure_queue('mail', '{"type": "log"}') $$),
    'OJ313 TOPIC_EXISTS_INCOMPATIBLE type', 'Q-02: nor later');
select is(ojs.create_queue('audit', '{"type": "log"}') ->> 'type', 'log', 'Q-02: a log');
select is(pg_temp.refusal($$ select ojs.configure_queue('audit', '{"type": "queue"}') $$),
    'OJ313 TOPIC_EXISTS_INCOMPATIBLE type', 'Q-02: which stays one');
select is(ojs.configure_queue('audit', '{"type": null, "lease_ms": 500}') ->> 'type', 'log',
    'Q-02: null does not change it either');
select isnt(pg_temp.pushed('audit'), null, 'Q-03: a log takes a push');
select is((select count(*) from ojs.jobs where queue = 'audit'), 1::bigint, 'Q-03: and can be read');
select is(pg_temp.refusal($$ select ojs.claim('audit', 'w') $$), 'OJ312 TOPIC_NOT_A_QUEUE',
    'Q-03: it hands out nothing');
select isnt(pg_temp.pushed('implicit'), null, 'R-31: a push makes a queue');
select is(pg_temp.refusal($$ select ojs.create_queue('implicit', '{"type": "log"}') $$),
    'OJ313 TOPIC_EXISTS_INCOMPATIBLE type', 'Q-02: of type queue');

select is(pg_temp.refusal($$ select ojs.create_queue('Mail') $$), 'OJ102 INVALID_QUEUE queue', 'R-05: upper case'),
    is(pg_temp.refusal($$ select ojs.create_queue('a_b') $$), 'OJ102 INVALID_QUEUE queue', 'R-05: an underscore'),
    is(pg_temp.refusal(format('select ojs.create_queue(%L)', repeat('q', 129))), 'OJ114 QUEUE_NAME_TOO_LONG queue',
        'R-05: 129 characters'),
    is(ojs.create_queue(repeat('q', 128)) ->> 'name', repeat('q', 128), 'R-05: 128 characters'),
    is(pg_temp.refusal($$ select ojs.create_queue(null) $$), 'OJ102 INVALID_QUEUE name', 'Q-01: no name');

-- Settings -----------------------------------------------------------------------------------------------------------

select ojs.create_queue('try') is null as made \gset
select is(pg_temp.refused('lease', '1'), 'OJ100 INVALID_PAYLOAD lease', 'Q-01: an unknown key is refused'),
    is(pg_temp.refusal($$ select ojs.create_queue('try', '[]') $$), 'OJ100 INVALID_PAYLOAD config',
        'Q-01: not an object');
select is(pg_temp.set_to('lease_ms', '99'), '100', 'Q-04: clamped from below'),
    is(pg_temp.set_to('lease_ms', '-5'), '100', 'Q-04: a negative one too'),
    is(pg_temp.set_to('lease_ms', '1000000000000'), '86400000', 'Q-04: clamped from above'),
    is(pg_temp.set_to('lease_ms', '1e30'), '86400000', 'Q-04: however large'),
        is(pg_temp.set_to('lease_ms', '100'), '100', 'Q-04: the bound itself'),
    is(pg_temp.set_to('lease_ms', 'null'), '30000', 'Q-04: null is the default again'),
    is(pg_temp.refused('lease_ms', '"30s"'), 'OJ100 INVALID_PAYLOAD lease_ms', 'Q-04: text'),
        is(pg_temp.refused('lease_ms', 'true'), 'OJ100 INVALID_PAYLOAD lease_ms', 'Q-04: a boolean'),
    is(pg_temp.refused('lease_ms', '1.5'), 'OJ100 INVALID_PAYLOAD lease_ms', 'Q-04: a part of a millisecond');
select is(ojs.configure_queue('try', '{"visibility_timeout": 45}') #> '{config,lease_ms}', '45000',
    'QC-02: visibility_timeout is lease_ms in seconds'),
    is(ojs.configure_queue('try', '{"visibility_timeout": "PT2M"}') #> '{config,lease_ms}', '120000',
        'QC-02: or ISO 8601'),
    is(pg_temp.refusal($$ select ojs.configure_queue('try', '{"visibility_timeout": 45, "lease_ms": 1000}') $$),
        'OJ100 INVALID_PAYLOAD visibility_timeout', 'QC-02: both, and different');
select is(pg_temp.set_to('claim_jitter_ms', '6000'), '5000', 'Q-05: clamped from above'),
    is(pg_temp.set_to('claim_jitter_ms', '-1'), '0', 'Q-05: and from below'),
    is(pg_temp.set_to('claim_jitter_ms', '250'), '250', 'Q-05: as given'),
        is(pg_temp.refused('claim_jitter_ms', '"1"'), 'OJ100 INVALID_PAYLOAD claim_jitter_ms', 'Q-05: text');
select is(pg_temp.config_of('mail', 'claim_rate'), '0', 'Q-68: claim_rate is off by default'),
    is(pg_temp.set_to('claim_rate', '5'), '5', 'Q-68: as given'),
    is(pg_temp.refused('claim_rate', '-1'), 'OJ100 INVALID_PAYLOAD claim_rate', 'Q-68: a negative one is refused'),
    is(pg_temp.refused('claim_rate', '0.5'), 'OJ100 INVALID_PAYLOAD claim_rate', 'Q-68: a fraction'),
    is(pg_temp.refused('claim_rate', '"5"'), 'OJ100 INVALID_PAYLOAD claim_rate', 'Q-68: text'),
        is(pg_temp.set_to('claim_rate', 'null'), '0', 'Q-68: null is off');
select is(pg_temp.set_to('max_deliveries', '5'), '5', 'Q-06: as given'),
    is(pg_temp.refused('max_deliveries', '-1'), 'OJ100 INVALID_PAYLOAD max_deliveries',
    'Q-06: a negative one is refused'),
    is(pg_temp.refused('max_deliveries', '1.5'), 'OJ100 INVALID_PAYLOAD max_deliveries', 'Q-06: a fraction'),
    is(pg_temp.refused('max_deliveries', '"5"'), 'OJ100 INVALID_PAYLOAD max_deliveries', 'Q-06: text'),
        is(pg_temp.refused('max_deliveries', '3000000000'), 'OJ100 INVALID_PAYLOAD max_deliveries', 'Q-06: too large');
select is(pg_temp.set_to('dead_letter', '"try.dlq"'), '"try.dlq"', 'Q-07: as given'),
    is(pg_temp.refused('dead_letter', '"try"'), 'OJ100 INVALID_PAYLOAD dead_letter', 'Q-07: not the queue itself'),
    is(pg_temp.refused('dead_letter', '"No Queue"'), 'OJ102 INVALID_QUEUE dead_letter', 'Q-07: not a name'),
        is(pg_temp.refused('dead_letter', '7'), 'OJ102 INVALID_QUEUE dead_letter', 'Q-07: a number'),
    is(ojs.configure_queue('try', '{"dead_letter_queue": "other"}') #>> '{config,dead_letter}', 'other',
        'QC-02: another name for it'),
    is(pg_temp.set_to('dead_letter', 'null'), 'null', 'Q-07: null is none');
select is(pg_temp.set_to(s, 'true'), 'true', 'Q-01: ' || s),
    is(pg_temp.set_to(s, 'false'), 'false', 'Q-01: ' || s),
    is(pg_temp.refused(s, '1'), 'OJ100 INVALID_PAYLOAD ' || s, 'Q-01: ' || s || ' is a boolean')
from unnest('{durable,leases_durable,lease_log,delete_on_ack,expiry_counts_attempt}'::text[]) s;
select is(pg_temp.set_to('discard', '"drop_oldest"'), '"drop_oldest"', 'Q-09: drop_oldest'),
    is(ojs.configure_queue('try', '{"overflow_policy": "block"}') #>> '{config,discard}', 'block',
    'QC-02: overflow_policy'),
    is(pg_temp.refused('discard', '"never"'), 'OJ100 INVALID_PAYLOAD discard', 'Q-09: another'),
        is(pg_temp.refused('discard', '1'), 'OJ100 INVALID_PAYLOAD discard', 'Q-09: a number');
select is(pg_temp.set_to('max_size', '1000'), '1000', 'QC-02: max_size'),
    is(ojs.configure_queue('try', '{"max_depth": 7}') #> '{config,max_size}', '7', 'QC-02: max_depth'),
    is(pg_temp.refused('max_size', '-1'), 'OJ100 INVALID_PAYLOAD max_size', 'QC-02: a negative one'),
        is(pg_temp.set_to('max_size_bytes', '1048576'), '1048576', 'QC-02: max_size_bytes'),
    is(pg_temp.set_to('concurrency', '20'), '20', 'QC-02: concurrency'),
        is(pg_temp.refused('concurrency', '-2'), 'OJ100 INVALID_PAYLOAD concurrency', 'QC-02: a negative one'),
    is(pg_temp.set_to('producers', '["billing"]'), '["billing"]', 'QC-02: producers'),
        is(pg_temp.refused('producers', '[1]'), 'OJ100 INVALID_PAYLOAD producers', 'QC-02: not of numbers'),
    is(pg_temp.set_to('dead_letter_max_size', '10'), '10', 'QC-02: dead_letter_max_size'),
        is(pg_temp.set_to('dead_letter_ttl', '"P30D"'), '"P30D"', 'QC-02: dead_letter_ttl'),
    is(pg_temp.refused('rate_limit', '"fast"') like 'OJ100 INVALID_PAYLOAD%', true, 'QC-02: a rate limit that is none'),
    is(pg_temp.set_to('rate_limit', '{"limit": 5, "period": "PT1S"}') is not null, true, 'QC-02: a rate limit');
select is(pg_temp.set_to('retention', '{"completed": "P1D"}'),
    '{"completed": "P1D", "discarded": "P30D", "cancelled": "P7D"}', 'QC-02: retention, in part'),
    is(pg_temp.refused('retention', '{"failed": "P1D"}'), 'OJ100 INVALID_PAYLOAD retention.failed',
        'QC-02: an unknown part'),
    is(pg_temp.refused('retention', '{"completed": "1 day"}'), 'OJ100 INVALID_PAYLOAD retention.completed',
        'QC-02: no ISO 8601 duration'),
    is(pg_temp.refused('retention', '"P1D"'), 'OJ100 INVALID_PAYLOAD retention', 'QC-02: not an object');
select is(pg_temp.set_to('default_timeout', '60'), '60', 'QC-02: default_timeout in seconds'),
    is(ojs.configure_queue('try', '{"default_timeout_ms": 1500}') #> '{config,default_timeout}', '1.5',
    'QC-02: or milliseconds'),
    is(pg_temp.refused('default_timeout', '-1'), 'OJ100 INVALID_PAYLOAD default_timeout', 'QC-02: a negative one');
select is(pg_temp.refused('default_retry', '{"max_attempts": -1}') like 'OJ106 INVALID_RETRY_POLICY%', true,
    'QC-02: a retry policy is checked'),
    is(pg_temp.refused('default_retry', '3'), 'OJ106 INVALID_RETRY_POLICY default_retry', 'QC-02: and an object'),
    is(pg_temp.set_to('default_retry', '{"max_attempts": 9}') -> 'max_attempts', '9', 'QC-02: default_retry');
select is(pg_temp.set_to('allowed_job_types', '["a.b", "mail.*", "*"]'), '["a.b", "mail.*", "*"]',
    'QC-02: allowed_job_types'),
    is(pg_temp.refused('allowed_job_types', '[]'), 'OJ100 INVALID_PAYLOAD allowed_job_types', 'QC-02: none'),
    is(pg_temp.refused('allowed_job_types', '["m*"]'), 'OJ100 INVALID_PAYLOAD allowed_job_types', 'QC-02: no pattern'),
    is(pg_temp.refused('allowed_job_types', '"a"'), 'OJ100 INVALID_PAYLOAD allowed_job_types', 'QC-02: not an array');
select is((select config from ojs.queues where name = 'try') ? 'visibility_timeout', false,
    'QC-02: stored under one name');

-- Push rules ---------------------------------------------------------------------------------------------------------

select ojs.create_queue('rules',
    '{"default_timeout": 90, "default_retry": {"max_attempts": 7, "initial_interval": "PT4S"}, "allowed_job_types": '
    '["mail.*", "sms"]}') is null as made \gset
select is(timeout, '90 s', 'QC-03: the queue''s timeout'),
    is(max_attempts, 7, 'QC-03: the queue''s attempts'),
    is(retry -> 'initial_interval', '"PT4S"', 'QC-03: the queue''s interval'),
    is(retry -> 'backoff_coefficient', '2', 'QC-03: the system''s coefficient')
        from ojs.push('mail.send', queue => 'rules');
select is(timeout, '5 s', 'QC-03: the job''s timeout goes first'),
    is(max_attempts, 2, 'QC-03: the job''s attempts too'),
    is(retry -> 'initial_interval', '"PT4S"', 'QC-03: the rest is the queue''s')
from ojs.push('sms', queue => 'rules', timeout => '5 s', retry => '{"max_attempts": 2}');
select is(timeout, '90 s', 'R-09 QC-03: a timeout of 0 is the default')
    from ojs.push('sms', queue => 'rules', timeout => '0');
select is(max_attempts, 1, 'QC-03 DLV-01: a job that runs at most once has one attempt')
    from ojs.push('sms', queue => 'rules', options => '{"delivery": "at_most_once"}');
select is(j ->> 'max_attempts', '7', 'QC-03: push_job too')
    from ojs.push_job('{"type": "sms", "args": [], "queue": "rules"}') j;
select is(pg_temp.refusal($$ select ojs.push('mailer', queue => 'rules') $$),
    '42501 queue "rules" does not take jobs of the type mailer', 'QC-08: another type is refused'),
    is(pg_temp.refusal_detail($$ select ojs.push('mailer', queue => 'rules') $$) #>> '{details,reason}',
        'job_type_not_allowed', 'QC-08: for that reason'),
    is(pg_temp.refusal_detail($$ select ojs.push('mailer', queue => 'rules') $$) ->> 'code', 'PERMISSION_DENIED',
        'QC-08: PERMISSION_DENIED'),
    is(pg_temp.refusal_detail($$ select ojs.push('mail', queue => 'rules') $$) ->> 'code', 'PERMISSION_DENIED',
        'QC-08: mail.* is not mail'),
    is(pg_temp.refusal_detail($$ select *
        from ojs.push_many('[{"type": "sms", "args": [], "queue": "rules"}, {"type": "fax", "args": [], "queue": '
        '"rules"}]') $$) #>> '{details,index}', '1', 'QC-08: in a batch');
select ojs.configure_queue('rules', '{"default_timeout": 10, "default_retry": null}') is null as changed \gset
select is((select count(*) from ojs.jobs where queue = 'rules' and timeout = '90 s'), 4::bigint,
    'QC-03: a change leaves the jobs that are there');
select is(max_attempts, 3, 'QC-03: without a policy the system''s'),
    is(timeout, '10 s', 'QC-03: new jobs have the new timeout') from ojs.push('sms', queue => 'rules');

select is(q ->> 'name', '_default', 'QC-03: the policy for all queues')
    from ojs.configure_queue('_default',
    '{"default_retry": {"max_attempts": 11, "jitter": false}, "default_timeout": 33, "lease_ms": 7000}') q;
select is(max_attempts, 11, 'QC-03: holds for a new queue'),
    is(timeout, '33 s', 'QC-03: its timeout too') from ojs.push('test.job', queue => 'policied');
select is(lease_expires_at - started_at, '7 s', 'QC-03: and its lease') from ojs.claim('policied', 'w');
select is(pg_temp.config_of('policied', 'default_timeout'), '33', 'QC-03: which its settings show');
select ojs.configure_queue('policied', '{"default_retry": {"max_attempts": 12}, "lease_ms": 8000}') is null as set \gset
select is(max_attempts, 12, 'QC-03: the queue goes before the policy'),
    is(retry -> 'jitter', 'false', 'QC-03: field by field') from ojs.push('test.job', queue => 'policied');
select is(lease_expires_at - started_at, '8 s', 'QC-03: its lease too') from ojs.claim('policied', 'w');
select is((select count(*) from ojs.queues where name = '_default'), 0::bigint, 'QC-03: the policy is no queue'),
    is((select count(*) from ojs.queue_stats() where queue = '_default'), 0::bigint, 'QC-03: nor counted'),
    is(pg_temp.refusal($$ select ojs.push('test.job', queue => '_default') $$), 'OJ102 INVALID_QUEUE queue',
        'R-05: and takes no jobs'),
    is(pg_temp.refusal($$ select ojs.claim('_default', 'w') $$), 'OJ102 INVALID_QUEUE queue',
        'R-05: and hands out none'),
    is(pg_temp.refusal($$ select ojs.pause_queue('_default') $$), 'OJ102 INVALID_QUEUE queue',
        'R-05: and has no state'),
    is(pg_temp.refusal($$ select ojs.configure_queue('_default', '{"type": "log"}') $$), 'OJ100 INVALID_PAYLOAD type',
        'QC-03: nor a type');
select ojs.configure_queue('_default',
    '{"default_retry": null, "default_timeout": null, "lease_ms": null}') is null as reset \gset
select is(max_attempts, 3, 'QC-03: without it, the system''s defaults')
    from ojs.push('test.job', queue => 'unpolicied');

-- Pause, drain, resume -----------------------------------------------------------------------------------------------

select pg_temp.held('switch') as held, pg_temp.pushed('switch') as waiting \gset
select ojs.pause_queue('switch') \g /dev/null
select is((select state from ojs.queues where name = 'switch'), 'paused', 'QC-01: paused'),
    is(pg_temp.claim_ids('switch'), '{}', 'QC-01: hands out nothing'),
    is((select paused from ojs.queue_stats('switch')), true, 'QC-01: the statistics say so'),
        isnt(pg_temp.pushed('switch'), null, 'R-32: a push is taken'),
    is((select state from ojs.ack(:'held')), 'completed', 'QC-01: what is held may be acked');
select ojs.resume_queue('switch') \g /dev/null
select is(pg_temp.claim_ids('switch')::text, format('{%s}', :'waiting'), 'QC-01: resumed, in the old order');
select ojs.drain_queue('switch') \g /dev/null
select is((select state from ojs.queues where name = 'switch'), 'draining', 'QC-01: draining'),
    is(pg_temp.refusal($$ select pg_temp.pushed('switch') $$), 'OJ304 QUEUE_PAUSED retryable', 'R-32: refuses a push'),
    is(cardinality(pg_temp.claim_ids('switch')), 1, 'QC-01: and hands out what is there');
select ojs.resume_queue('switch') \g /dev/null
select isnt(pg_temp.pushed('switch'), null, 'QC-01: resumed, it takes pushes');
select ojs.pause_queue('new-paused') \g /dev/null
select is((select state from ojs.queues where name = 'new-paused'), 'paused', 'R-31: a pause makes the queue');
select is(ojs.configure_queue('new-paused', '{"lease_ms": 500}') ->> 'state', 'paused',
    'QC-01: settings leave the state');
set local ojs.strict_queues = on;
select is(pg_temp.refusal($$ select pg_temp.pushed('strictly') $$), 'OJ300 NOT_FOUND',
    'QC-08: strict_queues refuses an unknown queue');
select ojs.create_queue('strictly') is null as made \gset
select isnt(pg_temp.pushed('strictly'), null, 'QC-08: and takes a created one');
reset ojs.strict_queues;

-- Dead letters -------------------------------------------------------------------------------------------------------

select ojs.create_queue('work', '{"max_deliveries": 5, "dead_letter": "work.dlq"}') is null as made \gset
select id as poison, seq as poison_seq from ojs.push('test.job', '["p"]', queue => 'work', priority => 3,
    meta => '{"trace": "z9"}', tags => '{x}', "unique" => '{"keys": ["type", "queue"]}',
    options => '{"tag": "clip"}') \gset
select is(pg_temp.hand_back('work', 5), 5, 'Q-52: five deliveries');
select is(pg_temp.at(:'poison'), 'available/0/5', 'Q-52: given back each time');
select alike(ojs.explain_job(:'poison'), '%moves it to the queue "work.dlq"%', 'Q-52: explained');
select id as next from ojs.push('test.job', '["n"]', queue => 'work') \gset
select is(pg_temp.claim_ids('work')::text, format('{%s}', :'next'),
    'Q-22 Q-52: the sixth claim moves it, and fills up with the next');
select is(j.state || '/' || j.deliveries, 'discarded/5', 'Q-52 R-38: exactly five; the source is discarded'),
    is(j.error ->> 'dead_lettered_to', 'work.dlq', 'R-38: and says where it went'),
    is(j.error ->> 'type', 'max_deliveries', 'R-38: and why') from ojs.jobs j where id = :'poison';
select is(c.type || c.args::text || c.priority || c.state || c.attempt || c.deliveries, 'test.job["p"]3available00',
    'Q-53: the copy'),
    is(c.meta, jsonb_build_object('trace', 'z9', '$dead_letter_from', 'work', '$dead_letter_deliveries', 5,
        '$dead_letter_src_seq', :poison_seq), 'Q-53: keeps meta and says where it comes from'),
    is(c.extra ->> 'tag', 'clip', 'Q-53: and the tag'),
    is(c.tags, '{x}', 'Q-53: and the tags'),
        is(c."unique", null, 'INT-08: not the key'),
        ok(c.seq > :poison_seq, 'R-38: a number of its own'),
    is(c.id::text, (select error ->> 'dead_lettered_id' from ojs.jobs where id = :'poison'),
        'R-38: whose id the source knows')
from ojs.jobs c where queue = 'work.dlq';
select isnt((select id from ojs.push('test.job', queue => 'work', "unique" => '{"keys": ["type", "queue"]}')), null,
    'INT-08: the key is free');
select is((select dead_lettered || '/' || discarded from ojs.queue_stats('work')), '1/1', 'Q-55: counted'),
    is(pg_temp.counts('work.dlq'), '1/0/0/0/0/0', 'Q-56: the target is a queue');
select is(cardinality(pg_temp.claim_ids('work.dlq')), 1, 'Q-56: claimable');
select alike(ojs.explain_job(:'poison'), '%discarded%after 5 deliveries%a copy went to the queue "work.dlq"%',
    'R-38: explained afterwards');

select is(extra ->> 'dead_lettered_to', 'work.dlq', 'R-38: an attribute of the envelope'),
    is(extra ->> 'dead_lettered_id', error ->> 'dead_lettered_id', 'R-38: with the copy''s id'),
    is(ojs.info(id) ->> 'dead_lettered_to', 'work.dlq', 'R-38: in JSON, too') from ojs.jobs where id = :'poison';

-- By lapsed leases.
select ojs.create_queue('lapsing', '{"max_deliveries": 4, "dead_letter": "lapsed"}') is null as made \gset
select pg_temp.pushed('lapsing') as job \gset
select is(pg_temp.config_of('lapsing', 'expiry_counts_attempt'), 'false',
    'Q-52 R-17: where deliveries bound it, a lapse costs no attempt');
create function pg_temp.deliver(queue text, n int) returns int language plpgsql as $$
declare done int := 0;
begin
    for i in 1..n loop
        perform pg_temp.clock(i * interval '1 minute');
        done := done + cardinality(pg_temp.claim_ids(queue));
    end loop;
    return done;
end $$;
select is(pg_temp.deliver('lapsing', 9), 4, 'Q-52: four deliveries by lapses, however often one claims');
select is(pg_temp.at(:'job'), 'discarded/0/4', 'Q-52: then moved');
select pg_temp.clock('0') \g /dev/null
select pg_temp.pushed('forever') as job \gset
select ojs.create_queue('forever', '{"max_deliveries": 2, "expiry_counts_attempt": false}') is null as made \gset
select is(pg_temp.deliver('forever', 6), 6, 'Q-54: without a target, for ever');
select pg_temp.clock('0') \g /dev/null
select ojs.configure_queue('forever', '{"max_deliveries": 0, "dead_letter": "elsewhere"}') is null as made \gset
select is(pg_temp.deliver('forever', 12), 6, 'Q-54: without a bound, for ever');
select pg_temp.clock('0') \g /dev/null
select is((select count(*) from ojs.jobs where queue = 'elsewhere'), 0::bigint, 'Q-54: nothing moved');

-- A loop.
select ojs.create_queue('ping', '{"max_deliveries": 1, "dead_letter": "pong"}') is null as a,
    ojs.create_queue('pong', '{"max_deliveries": 1, "dead_letter": "ping"}') is null as b \gset
select pg_temp.pushed('ping') is null as pushed \gset
select is(pg_temp.hand_back('ping'), 1, 'Q-56: delivered in ping');
select is((select count(*) from (select ojs.nack(id) from ojs.claim('{ping,pong}'::text[], 'w', 10)) d), 1::bigint,
    'Q-56: moved to pong and delivered there, once, by one claim');
select is((select count(*) from ojs.claim('{ping,pong}'::text[], 'w', 10)), 1::bigint,
    'Q-56: moved back and delivered: a loop does not spin');
select is((select sum(dead_lettered) from ojs.queue_stats() where queue in ('ping', 'pong')), 2::numeric,
    'Q-55: two moves');
select is((select meta ->> '$dead_letter_from' from ojs.jobs where queue = 'ping' and state = 'active'), 'pong',
    'Q-53: the last move is the one that shows');
set local ojs.strict_queues = on;
select ojs.create_queue('strict-source', '{"max_deliveries": 1, "dead_letter": "unmade"}') is null as made \gset
select pg_temp.held('strict-source') as job \gset
select ojs.nack(:'job') is null as nacked \gset
select is(pg_temp.claim_ids('strict-source'), '{}', 'Q-07: a move makes its target even where queues are strict');
select is(pg_temp.counts('unmade'), '1/0/0/0/0/0', 'Q-07: there it is');
reset ojs.strict_queues;
-- 300 at once.
select ojs.create_queue('crowd', '{"max_deliveries": 1, "dead_letter": "crowd.dlq"}') is null as made \gset
select count(*) from ojs.push_many((select jsonb_agg('{"type": "t", "args": [], "queue": "crowd"}'::jsonb)
    from generate_series(1, 300))) \g /dev/null
select is(pg_temp.hand_back('crowd', 1, 300), 300, 'Q-52: three hundred');
select pg_temp.pushed('crowd') as fresh \gset
select is(pg_temp.claim_ids('crowd')::text, format('{%s}', :'fresh'), 'Q-22: are moved by one claim, which fills up');
select is((select dead_lettered from ojs.queue_stats('crowd')), 300::bigint, 'Q-55: all counted'),
    is(pg_temp.counts('crowd.dlq'), '300/0/0/0/0/0', 'Q-53: all there');
select ojs.tick() is null as ticked \gset
select is((select count(*) from ojs_store.queue_count where queue = ojs_store.queue_id('crowd')), 1::bigint,
    'Q-55: a tick adds the counts up'),
    is((select dead_lettered from ojs.queue_stats('crowd')), 300::bigint,
    'Q-55: to the same');

-- What ends and is deleted -------------------------------------------------------------------------------------------

select ojs.create_queue('brief', '{"delete_on_ack": true}') is null as made \gset
select pg_temp.held('brief') as one, pg_temp.held('brief') as two,
    pg_temp.held('brief', options => '{"expires_at": "2099-01-01T00:00:00Z"}') as three,
    pg_temp.pushed('brief') as four \gset
select ojs.nack(id) is null as nacked from ojs.claim('brief', 'w') \gset
select ojs.fail(id, '{"type": "x", "message": "y"}', requeue => true) is null as failed
    from ojs.claim('brief', 'w') \gset
select id as four from ojs.claim('brief', 'w') \gset
select is(state || coalesce(result ->> 0, '') || jsonb_typeof(args), 'completed7array', 'R-23: an ack answers as ever')
    from ojs.ack(:'one', '[7]');
select is(pg_temp.refusal(format('select ojs.info(%L)', :'one')), 'OJ300 NOT_FOUND', 'R-23: and the job is gone');
select is(done || '/' || skipped::text, '3/{}', 'R-23: ack_many too')
    from ojs.ack_many('w', array[:'two', :'three', :'four']::uuid[]);
select is((select count(*) from ojs_store.job where queue = ojs_store.queue_id('brief')), 0::bigint,
    'R-23: no envelope'),
    is((select count(*) from ojs_store.finished where queue = ojs_store.queue_id('brief')),
    0::bigint, 'R-23: no end'),
    is((select count(*) from ojs_store.job_history where job_id = :'four'), 0::bigint, 'R-23: no event'),
        is((select count(*) from ojs_store.delayed where job_id = :'three'), 0::bigint, 'R-23: no reminder');
select id as kept from ojs.push('once', queue => 'brief',
    "unique" => '{"keys": ["type"], "period": "P7D", "states": ["available", "active", "completed"]}') \gset
select is((select count(*) from (select ojs.ack(id) from ojs.claim('brief', 'w')) d), 1::bigint,
    'UNQ-23: a job whose policy counts completed ones');
select is(pg_temp.at(:'kept'), 'completed/1/1', 'UNQ-23: is kept'),
    is(pg_temp.refusal_detail($$ select ojs.push('once', queue => 'brief',
    "unique" => '{"keys": ["type"], "states": ["completed"]}') $$) ->> 'code', 'DUPLICATE_JOB', 'UNQ-23: and counts');
select id as other from ojs.push('twice', queue => 'brief', "unique" => '{"keys": ["type"]}') \gset
select is((select count(*) from (select ojs.ack(id) from ojs.claim('brief', 'w')) d), 1::bigint,
    'R-23: one whose policy does not'),
    isnt((select id from ojs.push('twice', queue => 'brief', "unique" => '{"keys": ["type"]}')), null,
    'R-23: leaves its key free');
select ojs.create_queue('brief2', '{"retention": {"completed": "PT0S"}}') is null as made \gset
select pg_temp.held('brief2') as gone \gset
select is((select count(*) from ojs.ack_and_claim('w', 'brief2', array[:'gone'::uuid])), 0::bigint,
    'R-23: a retention of zero is the same');
select is((select count(*) from ojs.jobs where id = :'gone'), 0::bigint, 'R-23: gone');
select ojs.create_queue('brief3',
    '{"delete_on_ack": true, "max_deliveries": 1, "dead_letter": "brief3.dlq"}') is null as made \gset
select pg_temp.held('brief3') as gone \gset
select ojs.nack(:'gone') is null as nacked \gset
select is(pg_temp.claim_ids('brief3'), '{}', 'R-38: moved');
select is((select count(*) from ojs.jobs where id = :'gone'), 0::bigint,
    'R-38: and removed where the queue deletes what ends'),
    is(pg_temp.counts('brief3.dlq'), '1/0/0/0/0/0', 'R-38: the copy stays');

-- Statistics ---------------------------------------------------------------------------------------------------------

select pg_temp.held('stats') as held, pg_temp.held('stats') as lapsing, pg_temp.held('stats') as delayed,
    pg_temp.held('stats') as retrying, pg_temp.held('stats') as done \gset
select ojs.extend(:'held', '1 hour') is null as a, ojs.nack(:'delayed', '10 minutes') is null as b,
    ojs.fail(:'retrying', '{"type": "x", "message": "y"}', delay => '10 minutes') is null as c,
    ojs.ack(:'done') is null as d \gset
select pg_temp.pushed('stats') is null as a, pg_temp.pushed('stats', '{"pending": true}') is null as b,
    (ojs.push('test.job', queue => 'stats', delay => '10 minutes')).id is null as c,
    (ojs.cancel(pg_temp.pushed('stats'))).id is null as d \gset
select is(pg_temp.counts('stats'), '1/2/1/1/1/1',
    'Q-58 R-81: ready, in flight, delayed, scheduled, retryable, pending'),
    is((select concat_ws('/', available, active, completed, cancelled, discarded) from ojs.queue_stats('stats')),
        '2/2/1/1/0', 'R-81: by state');
select pg_temp.clock('2 minutes') \g /dev/null
select is(pg_temp.counts('stats'), '2/1/1/1/1/1', 'Q-58: a lapsed lease is ready, not in flight'),
    is((select active from ojs.queue_stats('stats')), 2::bigint, 'R-81: and active until it is taken back');
select alike(ojs.explain_job(:'lapsing'), '%lease ran out 00:0% ago%', 'explain_job: a lapsed lease');
select pg_temp.clock('11 minutes') \g /dev/null
select is(pg_temp.counts('stats'), '5/1/0/0/0/1', 'Q-58: what fell due is ready');
select is((select sum(n)::int from (select ready + in_flight + delayed + scheduled + retryable + pending as n
    from ojs.queue_stats('stats')) s), 7, 'Q-58: together, what is not finished');
select pg_temp.clock('0') \g /dev/null
select is(i ->> 'topic' || '/' || (i ->> 'type') || '/' || (i ->> 'count'), 'stats/queue/7', 'Q-57: queue_info'),
    is(i #>> '{queue,ready}', '1', 'Q-57: ready'),
    is(i #>> '{queue,in_flight}', '2', 'Q-57: in flight'),
    is(i #>> '{queue,dead_lettered}', '0', 'Q-57: dead lettered'),
    is(i #>> '{queue,name}', 'stats', 'R-60: queue.name'),
    is(i #>> '{stats,queue}', 'stats', 'R-60: stats.queue'),
        is(i #>> '{stats,depth}', '5', 'R-60 BP-02: the depth does not count the active'),
    ok((i ->> 'head_seq')::bigint > (i ->> 'earliest_seq')::bigint, 'Q-57: head_seq and earliest_seq'),
        ok((i #>> '{performance,server_total_ms}')::numeric > 0, 'Q-57: performance'),
        ok(i ? 'created_at', 'QC-07: created_at')
from ojs.queue_info('stats') i;
select is(pg_temp.refusal($$ select ojs.queue_info('unheard-of') $$), 'OJ300 NOT_FOUND', 'R-31: info makes no queue'),
    is(pg_temp.refusal($$ select * from ojs.queue_stats('unheard-of') $$), 'OJ300 NOT_FOUND',
    'R-31: statistics neither'),
    is((select count(*) from ojs.queues where name = 'unheard-of'), 0::bigint, 'R-31: there is none');
select is((select count(*) from ojs.queue_stats()), (select count(*) from ojs.queues), 'QC-07: all queues');
select is((select string_agg(id::text, ',' order by seq)
    from (select id, seq from ojs.jobs where queue = 'stats' and seq >= 0) j) is not null, true,
    'Q-59: reading by queue and seq'),
    is(pg_temp.counts('stats'), '1/2/1/1/1/1', 'Q-59: changes nothing');

select alike(ojs.explain_job(:'held'), '%the worker "w" holds it, delivery 1, attempt 1 of 3%', 'explain_job: held'),
    alike(ojs.explain_job(:'delayed'), '%given back with a delay%in 00:%', 'explain_job: delayed'),
    alike(ojs.explain_job(:'retrying'), '%failed at attempt 1 of 3 (x)%', 'explain_job: retryable'),
        alike(ojs.explain_job(:'done'), '%is completed%', 'explain_job: completed');
select alike(ojs.explain_job(id), '%pending%ojs.activate%', 'explain_job: pending') from ojs.jobs where queue = 'stats'
    and state = 'pending';
select alike(ojs.explain_job(id), '%not due%', 'explain_job: scheduled') from ojs.jobs where queue = 'stats'
    and state = 'scheduled';
select alike(ojs.explain_job(id), '%cancelled%', 'explain_job: cancelled') from ojs.jobs where queue = 'stats'
    and state = 'cancelled';
select alike(ojs.explain_job(id), '%may be claimed now%and 0 jobs%', 'explain_job: claimable') from ojs.jobs
    where queue = 'stats' and state = 'available' and id <> :'delayed';
select pg_temp.pushed('stats') as behind \gset
select alike(ojs.explain_job(:'behind'), '%and 1 jobs are served before it%', 'explain_job: behind one');
select ojs.pause_queue('stats') \g /dev/null
select alike(ojs.explain_job(:'behind'), '%queue "stats" is paused%', 'explain_job: paused');
select is(pg_temp.refusal($$ select ojs.explain_job('01900000-0000-7000-8000-000000000000') $$), 'OJ300 NOT_FOUND',
    'explain_job: no such job');
select alike(ojs.explain_job((select id from ojs.jobs where queue = 'audit')), '%log%', 'explain_job: a log');

-- Purge --------------------------------------------------------------------------------------------------------------

select is(pg_temp.refusal($$ select ojs.purge_queue('stats') $$), 'OJ100 INVALID_PAYLOAD confirm',
    'ADM-04: a purge must be confirmed'),
    is(pg_temp.refusal($$ select ojs.purge_queue('unheard-of', confirm => true) $$), 'OJ300 NOT_FOUND',
    'Q-69: of a queue that there is'),
    is(pg_temp.refusal($$ select ojs.purge_queue('stats', '{done}', true) $$), 'OJ100 INVALID_PAYLOAD states',
        'QC-01: of states that there are');
select is(ojs.purge_queue('stats', '{pending,completed}', true), 2::bigint, 'QC-01: by state');
select is(pg_temp.counts('stats'), '2/2/1/1/1/0', 'QC-01: these');
select is(ojs.purge_queue('stats', confirm => true), 5::bigint, 'QC-01: what waits');
select is(pg_temp.counts('stats'), '0/2/0/0/0/0', 'QC-01: not what is held'),
    is((select cancelled from ojs.queue_stats('stats')), 1::bigint, 'QC-01: nor what is finished');
select is(ojs.purge_queue('stats', '{active,cancelled}', true), 3::bigint, 'QC-01: these if asked');
select is((select count(*) from ojs_store.job where queue = ojs_store.queue_id('stats')), 0::bigint,
    'QC-01: nothing is left'),
    is(pg_temp.refusal(format('select ojs.ack(%L)', :'held')), 'OJ300 NOT_FOUND', 'QC-01: its worker is told');

-- One name, two rows.
insert into ojs_store.queue select id, name, 'active', created_at, '-infinity',
    '{}' from ojs_store.queue where name = 'rules';
select ojs_store.changed('ojs_store.queue') \g /dev/null
select is(pg_temp.config_of('rules', 'default_timeout'), '10', 'R-31: the newest row of a name counts'),
    is((select count(*) from ojs.queues where name = 'rules'), 1::bigint, 'R-31: and shows once');
select is(ojs.configure_queue('rules', '{"default_timeout": 20}') #> '{config,default_timeout}', '20',
    'R-31: a change reaches all rows');
insert into ojs_store.queue select id, name, 'active', created_at, '-infinity',
    '{}' from ojs_store.queue where name = 'rules' limit 1;
select pg_temp.clock('1 hour') \g /dev/null
select ojs.tick() is null as ticked \gset
select is((select count(*) || '/' || max(config ->> 'default_timeout') from ojs_store.queue where name = 'rules'),
    '1/20', 'R-31: a tick keeps the newest');
select pg_temp.clock('0') \g /dev/null

-- Rights -------------------------------------------------------------------------------------------------------------

set local role ojs_observer;
select ok(ojs.queue_info('work') is not null, 'PGX-12: an observer looks'),
    ok((select count(*) from ojs.queue_stats()) > 0, 'PGX-12: and counts'),
    ok(ojs.explain_job(:'poison') is not null, 'PGX-12: and asks why'),
    throws_ok($$ select ojs.pause_queue('work') $$, '42501', null, 'PGX-12: it changes nothing'),
        throws_ok($$ select ojs_store.raise('NOT_FOUND', 'x') $$, '42501', null,
        'PGX-12: and is kept out of ojs_store');
set local role ojs_worker;
select throws_ok($$ select ojs.create_queue('mine') $$, '42501', null, 'PGX-12: a worker makes no queue');
set local role ojs_admin;
select ok(ojs.create_queue('mine') is not null, 'PGX-12: an administrator does'),
    ok(ojs.drop_queue('mine') = 0, 'PGX-12: and drops it'),
    lives_ok($$ select ojs.pause_queue('p'), ojs.resume_queue('p'), ojs.drain_queue('p'),
    ojs.purge_queue('p', confirm => true) $$, 'PGX-12: and the rest');
reset role;

-- A dropped queue that comes back begins anew.

select is(ojs.drop_queue('ping', 'discard') > 0, true, 'Q-55: drop …');
select isnt(pg_temp.pushed('ping'), null, 'Q-69: a push makes it anew');
select is((select dead_lettered from ojs.queue_stats('ping')), 0::bigint, 'Q-55: … and create resets the counter'),
    is((select config from ojs.queues where name = 'ping'), '{}', 'Q-69: its settings are gone');
select is(cardinality(pg_temp.claim_ids('ping')), 1, 'Q-69: and it works');

select * from finish();
rollback;
