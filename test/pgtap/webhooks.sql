-- webhooks.sql: events that are delivered by HTTP, as far as the database does it: WHK-01, WHK-02. It commits: events
-- are read once they are settled. The sender: test/gateway/webhooks.
-- Runs once: nothing here asks whether ojs was preloaded.
select no_plan();
\ir helpers.psql
\ir http.psql
set client_min_messages = warning;

-- SUBSCRIPTIONS -----------------------------------------------------------------------------------------------------

create role hook_admin in role ojs_admin;
select ojs.create_webhook('{"url": "https://example.com/a?b=c", "events": ["workflow.*", "job.failed"],
    "filter": {"queues": ["mail"], "job_types": ["email.*"]}, "metadata": {"owner": "us"}}') as made \gset
select is(:'made'::jsonb - '{id,secret,created_at}'::text[], '{"url": "https://example.com/a?b=c", "active": true,
    "events": ["job.failed", "workflow.*"], "filter": {"queues": ["mail"], "job_types": ["email.*"]},
    "metadata": {"owner": "us"}, "timeout_seconds": 30}', 'WHK-01: a subscription is made');
select is((select w.id from ojs.webhooks w), (:'made'::jsonb ->> 'id')::uuid, 'WHK-01: its id is the one of the view'),
    matches(:'made'::jsonb ->> 'secret', '^whsec_[0-9a-f]{64}$', 'WHK-01: and a secret');
select :'made'::jsonb ->> 'id' as id, :'made'::jsonb ->> 'secret' as secret \gset
select is(pg_temp.refusal(format('select ojs.create_webhook(%L)', def)), 'OJ100 INVALID_PAYLOAD ' || field,
    'WHK-01: refused: ' || coalesce(def, 'null'))
from (values (null, 'def'), ('[]', 'def'), ('{}', 'url'), ('{"url": 7}', 'url'), ('{"url": null}', 'url'),
    ('{"url": "ftp://example.com", "events": ["*"]}', 'url'),
    ('{"url": "http://example.com", "events": ["*"]}', 'url'),
    ('{"url": "https://us:pw@example.com", "events": ["*"]}', 'url'),
    ('{"url": "https://example.com/a b", "events": ["*"]}', 'url'),
    ('{"url": "https://example.com/a\nb", "events": ["*"]}', 'url'),
    ('{"url": "https://example.com/#a", "events": ["*"]}', 'url'),
    ('{"url": "https://example.com"}', 'events'), ('{"url": "https://example.com", "events": []}', 'events'),
    ('{"url": "https://example.com", "events": ["job completed"]}', 'events'),
    ('{"url": "https://example.com", "events": [7]}', 'events'),
    ('{"url": "https://example.com", "events": ["*"], "filter": []}', 'filter'),
    ('{"url": "https://example.com", "events": ["*"], "filter": {"queue": "a"}}', 'filter'),
    ('{"url": "https://example.com", "events": ["*"], "filter": {"queues": "a"}}', 'filter.queues'),
    ('{"url": "https://example.com", "events": ["*"], "active": 1}', 'active'),
    ('{"url": "https://example.com", "events": ["*"], "secret": "short"}', 'secret'),
    ('{"url": "https://example.com", "events": ["*"], "secret": "a\nlonger one"}', 'secret'),
    ('{"url": "https://example.com", "events": ["*"], "metadata": 1}', 'metadata'),
    ('{"url": "https://example.com", "events": ["*"], "timeout_seconds": 4}', 'timeout_seconds'),
    ('{"url": "https://example.com", "events": ["*"], "timeout_seconds": 61}', 'timeout_seconds'),
    ('{"url": "https://example.com", "events": ["*"], "surprise": 1}', 'surprise')) c (def, field);
select is(pg_temp.refusal(format('select ojs.create_webhook(%L)', jsonb_build_object('url', 'https://example.com/'
    || repeat('x', 2048), 'events', '["*"]'::jsonb))), 'OJ100 INVALID_PAYLOAD url', 'WHK-01: refused: a long url');
-- What nobody would have meant: by SQL, and the same over HTTP.
create temp table bad_hooks (given jsonb, why text, hint text);
insert into bad_hooks (given, why, hint)
select '{"url": "https://example.com", "events": ["*"]}'::jsonb || given::jsonb, why, hint from (values
    ('{"url": "https://example.com:99999/hook"}', 'the port of url must be from 1 to 65535', '%:8443/hook.'),
    ('{"url": "https://example.com:0"}', 'the port of url must be from 1 to 65535', '%:8443/hook.'),
    ('{"url": "https://[::1]:65536/"}', 'the port of url must be from 1 to 65535', '%:8443/hook.'),
    ('{"url": "https://us:pw@example.com/"}', 'url must be an https URL%', 'Give one such as %'),
    ('{"url": "https://us@example.com/"}', 'url must be an https URL%', 'Give one such as %'),
    ('{"url": "https://."}', 'url must be an https URL%', 'Give one such as %'),
    ('{"url": ""}', 'url must be an https URL%', 'Give one such as %'),
    ('{"url": null}', 'url must be an https URL%', 'Give one such as %'),
    ('{"events": ["job.complete"]}', 'there are no events of type job.complete', '%job.completed%'),
    ('{"events": ["job.completed", "jobs.*"]}', 'there are no events of type jobs.*', 'Types begin with %job%'),
    ('{"events": ["job"]}', 'there are no events of type job', '%job.completed%'),
    ('{"events": ["webhook.test"]}', 'there are no events of type webhook.test', '%webhook.subscription.created%'),
    ('{"events": ["webhook.dead"]}', 'events about deliveries are not delivered', 'Read webhook.dead from %'),
    ('{"events": ["webhook.dead", "webhook.failed"]}', 'events about deliveries are not delivered', 'Read %'),
    ('{"events": []}', 'events must be an array of 1 to 100 names', 'Give types %'),
    ('{"events": null}', 'events is missing', 'Give types %'),
    ('{"events": [null]}', 'events must be an array of 1 to 100 names', 'Give types %'),
    ('{"events": [["*"]]}', 'events must be an array of 1 to 100 names', 'Give types %'),
    ('{"filter": {"queues": []}}', 'filter.queues must be an array of 1 to 100 names', 'Give names of queues.'),
    ('{"filter": {"queues": [null]}}', 'filter.queues must be an array of 1 to 100 names', 'Give names of queues.'),
    ('{"filter": {"job_types": []}}', 'filter.job_types must be an array of 1 to 100 names', 'Give types of jobs%'),
    ('{"active": null}', 'active must be a boolean', 'Give true or false.'),
    ('{"active": "true"}', 'active must be a boolean', 'Give true or false.'),
    ('{"metadata": null}', 'metadata must be an object of at most 8192 bytes', 'Give an object %'),
    ('{"timeout_seconds": null}', 'timeout_seconds must be a whole number from 5 to 60', 'Leave it out for 30.'),
    ('{"timeout_seconds": "30"}', 'timeout_seconds must be a whole number from 5 to 60', 'Leave it out for 30.'),
    ('{"timeout_seconds": 5.5}', 'timeout_seconds must be a whole number from 5 to 60', 'Leave it out for 30.'),
    ('{"timeout_seconds": 1e9}', 'timeout_seconds must be a whole number from 5 to 60', 'Leave it out for 30.')
    ) c (given, why, hint)
union all
select jsonb_build_object('url', 'https://example.com', 'events', '["*"]'::jsonb) || given, why, '%' from (values
    (jsonb_build_object('metadata', jsonb_build_object('a', repeat('x', 8192))), 'metadata must be an object of at %'),
    (jsonb_build_object('secret', repeat('x', 256)), 'secret must be 8 to 255 visible ASCII characters'),
    (jsonb_build_object('events', array(select 'job.e' || i from generate_series(1, 101) i)), 'events must be an %'),
    (jsonb_build_object('events', array['job.' || repeat('x', 300)]), 'events must be an array of 1 to 100 names'),
    (jsonb_build_object('url', 'https://' || repeat('x', 254)), 'url must be an https URL%')) c (given, why);
create function pg_temp.refused(def jsonb, out code text, out why text, out hint text) language plpgsql as $$
begin
    perform ojs.create_webhook(def);
exception when others then
    get stacked diagnostics code = returned_sqlstate, why = message_text, hint = pg_exception_hint;
end $$;
select is(r.code, 'OJ100', 'WHK-01: by SQL refused: ' || left(b.given::text, 99)),
    ok(r.why like b.why, 'WHK-01: and why: ' || coalesce(r.why, '')),
    ok(r.hint like b.hint, 'WHK-01: with a hint: ' || coalesce(r.hint, ''))
from bad_hooks b, pg_temp.refused(b.given) r;
select is(pg_temp.error('POST', '/ojs/v1/webhooks/subscriptions', b.given), '400 invalid_request',
    'WHK-01: over HTTP refused: ' || left(b.given::text, 99)) from bad_hooks b;
select is(pg_temp.refusal(call), 'OJ100 INVALID_PAYLOAD ' || field, 'WHK-01: nulls: ' || call) from (values
    ('select ojs.update_webhook(null, ''{}'')', 'id'), ('select ojs.rotate_webhook_secret(null)', 'id'),
    ('select ojs.test_webhook(null)', 'id'), ('select ojs.retry_webhook_delivery(null)', 'id'),
    (format('select ojs.update_webhook(%L, null)', :'id'), 'def'),
    (format('select ojs.rotate_webhook_secret(%L, null, null)', :'id'), 'overlap'),
    (format('select ojs.rotate_webhook_secret(%L, ''short'')', :'id'), 'secret'),
    (format('select ojs.rotate_webhook_secret(%L, overlap => ''-1 h'')', :'id'), 'overlap')) c (call, field);
select is(pg_temp.error('POST', '/ojs/v1/webhooks/subscriptions/' || :'id' || '/rotate-secret', body::jsonb),
    '400 ' || code, 'WHK-01: no rotation: ' || body) from (values ('{"secret": 7}', 'invalid_request'),
    ('{"secret": "short"}', 'invalid_request'), ('{"overlap": "-1 h"}', 'invalid_request'),
    ('{"surprise": 1}', 'invalid_request')) c (body, code);

-- The types that are accepted are those of the page, and what the specification has besides.
\set page `cat ../../docs/reference/events.md`
select set_eq($$select unnest(ojs_store.event_types())$$,
    format($$select t[1] from regexp_matches(%L, '^\| (`[a-z_.`, ]+`) \|', 'gn') line,
        regexp_matches(line[1], '`([a-z_]+\.[a-z_.]+)`', 'g') t
        union select unnest('{webhook.delivered,webhook.failed,worker.heartbeat}'::text[])$$, :'page'),
    'WHK-01: the types that docs/reference/events.md names are the known ones');

begin;
set local ojs.webhooks_over_http = on;
select is(pg_temp.refusal($$select ojs.create_webhook('{"url": "http://[::1]:80/", "events": ["*"]}')$$), 'accepted',
    'WHK-01: http where ojs.webhooks_over_http allows it');
select ojs.create_webhook('{"url": "https://example.com/", "events": ["*"]}') from generate_series(1, 98) \g /dev/null
select is(pg_temp.refusal($$select ojs.create_webhook('{"url": "https://example.com/", "events": ["*"]}')$$),
    '57P03 there are 100 subscriptions already', 'WHK-01: there are at most 100');
rollback;
begin;
set local ojs.tenancy = optional;
set local ojs.tenant = 'crowd';
select ojs.create_webhook('{"url": "https://example.com/", "events": ["*"]}') from generate_series(1, 20) \g /dev/null
select is(pg_temp.refusal($$select ojs.create_webhook('{"url": "https://example.com/", "events": ["*"]}')$$),
    '57P03 the tenant has 20 subscriptions already', 'WHK-01: a tenant leaves room for others');
set local ojs.tenant = 'alone';
select is(pg_temp.refusal($$select ojs.create_webhook('{"url": "https://example.com/", "events": ["*"]}')$$),
    'accepted', 'WHK-01: such as another one');
rollback;

select is(pg_temp.as_role('hook_admin', format('select string_agg(w::text, '' '') !~ %L from ojs.webhooks w',
    :'secret')), 'true', 'WHK-01: nobody sees the secret again: the view'),
    is((select string_agg(a::text, ' ') from ojs.audit a) ~ :'secret', false, 'WHK-01: the audit'),
    is((select string_agg(e::text, ' ') from ojs.events e) ~ :'secret', false, 'WHK-01: the events');
select is(pg_temp.as_role(role, 'select count(*) from ojs.' || what), '42501', format('WHK-01: %s is not for %s',
    what, role)) from unnest('{ojs_producer,ojs_worker,ojs_observer}'::name[]) role,
    unnest('{webhooks,webhook_deliveries}'::text[]) what;

select is(ojs.update_webhook(:'id', '{"active": false, "events": ["*"], "filter": null}') - '{id,created_at}'::text[],
    '{"url": "https://example.com/a?b=c", "active": false, "events": ["*"], "metadata": {"owner": "us"},
    "timeout_seconds": 30}', 'WHK-01: it is changed; what is not given stays');
select is(pg_temp.refusal(format('select ojs.update_webhook(%L, %L)', id, changes)), refused,
    'WHK-01: no change: ' || changes) from (values (:'id', '{"secret": "another one"}', 'OJ100 INVALID_PAYLOAD secret'),
    (:'id', '{"events": []}', 'OJ100 INVALID_PAYLOAD events'), (:'id', '{"url": "x"}', 'OJ100 INVALID_PAYLOAD url'),
    (gen_random_uuid()::text, '{}', 'OJ300 NOT_FOUND')) c (id, changes, refused);
select is((select string_agg(a.act, ' ' order by a.at) from ojs.audit a where a.subject = 'sub_' || :'id'),
    'webhook_created webhook_updated', 'WHK-01: the audit knows');
select is(ojs.drop_webhook(:'id'), true, 'WHK-01: it is dropped'), is(ojs.drop_webhook(:'id'), false, 'WHK-01: once');
select is((select count(*)::int from ojs_store.webhook_cursor), 0, 'WHK-02: without any, nothing is kept');

-- EVENTS ------------------------------------------------------------------------------------------------------------

create function pg_temp.hook(name text, def jsonb default '{}') returns uuid language sql as $$
    select (ojs.create_webhook('{"events": ["*"]}'::jsonb || jsonb_build_object('url', 'https://' || name)
        || def) ->> 'id')::uuid
$$;
-- Another session may be at it: the worker.
create function pg_temp.ticks_until(condition text) returns void language plpgsql as $$
declare
    so boolean;
begin
    for i in 1..3000 loop
        perform ojs.tick();
        execute condition into so;
        exit when so;
        perform pg_sleep(0.01);
    end loop;
end $$;
-- Waits until all events up to that of this job have become deliveries.
create function pg_temp.delivered_up_to(job uuid) returns void language plpgsql as $$
begin
    perform pg_temp.ticks_until(format($c$select exists (select from ojs.webhook_deliveries d join ojs.webhooks w
        on w.id = d.webhook where w.url = 'https://all' and d.body::jsonb ->> 'subject' = %L)$c$, job));
end $$;
-- What a subscription has got: types and queues.
create function pg_temp.got_by(name text) returns text language sql as $$
    select coalesce(string_agg(format('%s %s', d.event_type, d.body::jsonb #>> '{data,queue}'), ', '
        order by d.event_type, d.body::jsonb #>> '{data,queue}'), '')
    from ojs.webhook_deliveries d join ojs.webhooks w on w.id = d.webhook
    where w.url = 'https://' || name and d.event_type not like 'webhook.%'
        and d.body::jsonb #>> '{data,queue}' is distinct from 'last'
$$;
\o /dev/null
create role other_admin;
select ojs.create_queue('closed', '{"readers": ["other_admin"], "administrators": ["other_admin"]}');
select id as early from ojs.push('email.send', queue => 'mail') \gset
set ojs.tenancy = optional;
select pg_temp.hook('all'), pg_temp.hook('one', '{"events": ["job.completed"]}'),
    pg_temp.hook('some', '{"events": ["queue.*", "job.completed"]}'),
    pg_temp.hook('mails', '{"filter": {"queues": ["mail"]}}'),
    pg_temp.hook('mailings', '{"filter": {"job_types": ["email.*"]}}'),
    pg_temp.hook('both', '{"filter": {"queues": ["mail"], "job_types": ["sms.*"]}}'),
    pg_temp.hook('asleep', '{"active": false}');
set role hook_admin;
select pg_temp.hook('narrow', '{"events": ["job.enqueued"], "filter": {"queues": ["closed", "mail"]}}');
reset role;
set ojs.tenant = 'acme';
select pg_temp.hook('acme', '{"filter": {"queues": ["mail"]}}'), pg_temp.hook('acme-all');
reset ojs.tenant;
select id as job from ojs.push('email.send', '[1]', queue => 'mail') \gset
select id from ojs.claim('mail', 'w', 2);
select ojs.ack(:'job', '{"a": 1}'), ojs.ack(:'early');
select ojs.push('sms.send', queue => 'phone'), ojs.push('sms.send', queue => 'closed');
select ojs.push('email.send', queue => 'mail', meta => '{"tenant_id": "acme"}');
select ojs.create_workflow('{"type": "chain", "steps": [{"type": "email.send", "args": [],
    "options": {"queue": "flow"}}]}');
select ojs.pause_queue('flow');
select id as last from ojs.push('a.b', queue => 'last') \gset
select pg_temp.delivered_up_to(:'last');
\o
select is(pg_temp.got_by('one'), 'job.completed mail, job.completed mail', 'WHK-02: by the type of the event');
select is(pg_temp.got_by('some'), 'job.completed mail, job.completed mail, queue.paused flow',
    'WHK-01: by its beginning');
select is(pg_temp.got_by('mails'), 'job.completed mail, job.completed mail, job.enqueued mail, '
    'job.enqueued mail@acme, job.started mail, job.started mail', 'WHK-01: by the queue, of all tenants'),
    is(pg_temp.got_by('mailings'), 'job.completed mail, job.completed mail, job.enqueued flow, job.enqueued mail, '
        'job.enqueued mail@acme, job.started mail, job.started mail', 'WHK-01: by the type of the job'),
    is(pg_temp.got_by('both'), '', 'WHK-01: by both');
select is(pg_temp.got_by('asleep'), '', 'WHK-01: not while it is not active');
select is(pg_temp.got_by('narrow'), 'job.enqueued mail, job.enqueued mail@acme',
    'WHK-02: nothing that who made it may not read');
select ok(pg_temp.got_by('all') ~ 'job.enqueued closed', 'WHK-02: who may read all gets all'),
    ok(pg_temp.got_by('all') ~ 'queue.paused flow', 'WHK-02: events of other things, too');
select is(pg_temp.got_by('acme'), 'job.enqueued mail', 'WHK-01: a tenant gets its own, by the plain name of the queue'),
    is(pg_temp.got_by('acme-all'), 'job.enqueued mail', 'WHK-01: and nothing else, whatever it asks for');
select is((select count(*)::int from ojs.webhook_deliveries d where d.body ~ '@acme'
    and d.webhook in (select id from ojs.webhooks where tenant = 'acme')), 0, 'WHK-01: nowhere another name');
select is((select string_agg(d.body::jsonb ->> 'type', '') from ojs.webhook_deliveries d join ojs.webhooks w
    on w.id = d.webhook where w.url = 'https://all' and d.body::jsonb ->> 'subject' = :'early'
    and d.event_type = 'job.enqueued'), null, 'WHK-01: nothing from before');
set ojs.tenant = 'acme';
select is((select string_agg(url, ' ' order by url) from ojs.webhooks), 'https://acme https://acme-all',
    'WHK-01: a tenant sees its own subscriptions'),
    is(pg_temp.http('GET', '/ojs/v1/webhooks/subscriptions') #>> '{body,total}', '2', 'WHK-01: over HTTP, too');
set ojs.tenant = 'other';
select is((select count(*)::int from ojs.webhook_deliveries), 0, 'WHK-01: another one none of its deliveries');
reset ojs.tenant;
select id as acme from ojs.webhooks where url = 'https://acme' \gset
set ojs.tenant = 'other';
select is(pg_temp.refusal(format(call, :'acme')), 'OJ300 NOT_FOUND', 'WHK-01: nor may it ' || call) from (values
    ('select ojs.update_webhook(%L, ''{}'')'), ('select ojs.rotate_webhook_secret(%L)'),
    ('select ojs.test_webhook(%L)')) c (call);
select is(ojs.drop_webhook(:'acme'), false, 'WHK-01: or drop it');
reset ojs.tenant;

set role hook_admin;
select is((select string_agg(distinct w.url, ' ') from ojs.webhook_deliveries d join ojs.webhooks w on w.id = d.webhook
    where d.body is not null), 'https://narrow', 'WHK-01: another administrator does not see what is in deliveries');
select ojs.update_webhook(id, '{"metadata": {}}') from ojs.webhooks where url = 'https://mails' \g /dev/null
reset role;
select is((select role::name from ojs.webhooks where url = 'https://mails'), current_user,
    'WHK-01: who changes anything but the address does not get what goes there');
update ojs_store.webhook_delivery d set response = 'an echo', state = 'delivered'
where d.id = (select d.id from ojs.webhook_deliveries d join ojs.webhooks w on w.id = d.webhook
    where w.url = 'https://all' limit 1);
select id as all, pending as waiting from ojs.webhooks where url = 'https://all' \gset
select ok((select count(*) > 0 from ojs.webhook_deliveries d where d.webhook = :'all' and d.body ~ '"closed"'),
    'WHK-02: something waits that not everybody may read');
begin;
select ojs.update_webhook(:'all', '{"url": "https://all"}') \g /dev/null
select is((select pending from ojs.webhooks where id = :'all'), :waiting,
    'WHK-01: who may act as its role gives it an address, and what waits goes there');
rollback;
begin;
update ojs_store.webhook set role = 'of_nobody' where id = :'all';
select ojs.update_webhook(:'all', '{"url": "https://all"}') \g /dev/null
select is((select role || pending from ojs.webhooks where id = :'all'), current_user || '0',
    'WHK-01: one whose role is gone is adopted, without what was for that role');
rollback;
begin;
set local role hook_admin;
select ojs.update_webhook(:'all', '{"url": "https://elsewhere"}') \g /dev/null
select is((select count(*)::int from ojs.webhook_deliveries where webhook = :'all'), 0,
    'WHK-01: another one who gives it an address reads nothing of what was for its role');
select is((select concat_ws(' ', role, pending, dropped) from ojs.webhooks where id = :'all'),
    format('hook_admin 0 %s', :waiting), 'WHK-01: and gets nothing of it: it is dropped');
reset role;
select is((select pending_bytes from ojs_store.webhook_status where webhook = :'all'), 0::bigint,
    'WHK-01: its bytes, too');
rollback;
select is(pg_temp.as_role('hook_admin', 'select ' || call), '42501', 'WHK-02: nobody is a sender unasked: ' || call)
from unnest('{ojs.claim_webhooks(),ojs.finish_webhooks(''[]'')}'::text[]) call;

-- One event is one delivery, also where events are read again.
select count(*) as n from ojs.webhook_deliveries \gset
update ojs_store.webhook_cursor set cursor = '0.0';
select pg_temp.ticks_until($$select cursor not like '0.%' from ojs_store.webhook_cursor$$) \g /dev/null
select is((select count(*)::int from ojs.webhook_deliveries), :n, 'WHK-02: what is read again is not delivered again');
select is((select sum(dropped) from ojs.webhooks), 0::numeric, 'WHK-02: nor counted as dropped');
select is((select count(*) - count(distinct (webhook, event_id)) from ojs.webhook_deliveries), 0::bigint,
    'WHK-02: no event is there twice');

-- SENDING -----------------------------------------------------------------------------------------------------------

-- From here on with a subscription of its own.
select ojs.drop_webhook(id) from ojs.webhooks \g /dev/null
select is(ojs_store.hmac_sha256('Jefe', 'what do ya want for nothing?'),
    '5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843', 'WHK-02: HMAC-SHA256, as RFC 4231 has it');
select pg_temp.hook('all', '{"events": ["job.enqueued"], "secret": "the-old-secret"}') as id \gset
create function pg_temp.deliveries(n int) returns void language sql as $$
    delete from ojs_store.webhook_delivery;
    insert into ojs_store.webhook_delivery (id, webhook, event_id, event_type, state, attempts, created_at, due_at,
        body)
    select gen_random_uuid(), w.id, 'evt_' || i, 'job.enqueued', 'pending', 0, now(), now() - make_interval(secs => i),
        '{"n": ' || i || '}' from ojs.webhooks w, generate_series(1, n) i;
    update ojs_store.webhook_status set pending = n, pending_bytes = (select coalesce(sum(octet_length(body)), 0)
        from ojs_store.webhook_delivery), failures = 0;
$$;
create temp table claimed as select * from ojs.claim_webhooks() limit 0;
create function pg_temp.claim(max int default 50) returns bigint language sql as $$
    with c as (insert into claimed select * from ojs.claim_webhooks(max) returning 1) select count(*) from c
$$;
create function pg_temp.finish(outcome jsonb) returns int language sql as $$
    select finished from ojs.finish_webhooks((select coalesce(jsonb_agg(jsonb_build_object('id', c.id, 'lease_id',
        c.lease_id) || outcome), '[]') from claimed c))
$$;
create function pg_temp.states() returns text language sql as $$
    select string_agg(concat_ws('/', state, attempts, status_code), ' ' order by state, attempts)
    from ojs.webhook_deliveries
$$;
select pg_temp.deliveries(6) \g /dev/null
select is(pg_temp.claim(), 4::bigint, 'WHK-02: an address gets four at a time'),
    is(pg_temp.claim(), 0::bigint, 'WHK-02: and no more');
select is((select string_agg(body, '' order by body) from claimed), '{"n": 3}{"n": 4}{"n": 5}{"n": 6}',
    'WHK-02: first those that are due the longest');
select is(c.headers, array['Content-Type: application/json', 'User-Agent: OJS-Webhook/1.0',
    'X-OJS-Event-Type: job.enqueued', 'X-OJS-Delivery-ID: del_' || c.id, 'X-OJS-Subscription-ID: sub_' || :'id',
    'X-OJS-Timestamp: ' || stamp, 'X-OJS-Signature: sha256=' || ojs_store.hmac_sha256('the-old-secret',
    stamp || '.' || c.body)], 'WHK-02: its headers')
from claimed c, substr(c.headers[6], 18) stamp where c.body = '{"n": 6}';
select is(pg_temp.finish('{"status_code": 200, "response": "ok", "duration_ms": 5}'), 4, 'WHK-02: what came of it'),
    is(pg_temp.finish('{"status_code": 500}'), 0, 'WHK-02: counts once');
select is(pg_temp.states(), 'delivered/1/200 delivered/1/200 delivered/1/200 delivered/1/200 pending/0 pending/0',
    'WHK-02: 2xx: delivered');
select is((select string_agg(concat_ws(' ', pending, delivered, retried, dead, dropped, failures), '')
    from ojs.webhooks), '2 4 0 0 0 0', 'WHK-02: it is counted');
truncate claimed;
select is(pg_temp.claim(), 2::bigint, 'WHK-02: then come the others'),
    is(pg_temp.finish('{"error": "connection refused"}'), 2, 'WHK-02: these fail');
select is(pg_temp.states(), 'delivered/1/200 delivered/1/200 delivered/1/200 delivered/1/200 pending/1 pending/1',
    'WHK-02: without any status');
update ojs_store.webhook_delivery set due_at = now() where state = 'pending';
truncate claimed;
select is(pg_temp.claim(), 1::bigint, 'WHK-02: an address that fails gets one at a time');
select is(pg_temp.claim(), 0::bigint, 'WHK-02: as long as it does');

create function pg_temp.life(outcome jsonb) returns text language plpgsql as $$
declare
    said text;
begin
    perform pg_temp.deliveries(1);
    for i in 1..9 loop
        update ojs_store.webhook_delivery set due_at = now() where state = 'pending';
        truncate claimed;
        exit when pg_temp.claim() = 0;
        perform pg_temp.finish(outcome);
        said := concat_ws(' ', said, (select case d.state when 'pending'
            then round(extract(epoch from d.due_at - w.attempted_at))::text else d.state end
            from ojs.webhook_deliveries d join ojs.webhooks w on w.id = d.webhook));
    end loop;
    return said;
end $$;
select is(pg_temp.life(outcome::jsonb), life, 'WHK-02: its attempts: ' || outcome) from (values
    ('{"status_code": 500}', '30 120 600 3600 14400 43200 86400 dead'),
    ('{"error": "timeout"}', '30 120 600 3600 14400 43200 86400 dead'),
    ('{"status_code": 302}', '30 120 600 3600 14400 43200 86400 dead'),
    ('{"status_code": 429}', '30 120 600 3600 14400 43200 86400 dead'),
    ('{"status_code": 429, "retry_after": 7}', '7 7 7 7 7 7 7 dead'),
    ('{"status_code": 503, "retry_after": 1000000}',
        '86400 86400 86400 86400 86400 86400 86400 dead'),
    ('{"status_code": 500, "retry_after": 7}', '30 120 600 3600 14400 43200 86400 dead'),
    ('{"status_code": 400}', 'dead'), ('{"status_code": 410}', 'dead'), ('{"status_code": 204}', 'delivered'))
    c (outcome, life);
select is((select count(*)::int from ojs.events where type = 'webhook.dead'), 9, 'WHK-02: each death is an event');

-- A lease that is over.
select pg_temp.deliveries(1) \g /dev/null
truncate claimed;
select is(pg_temp.claim(), 1::bigint, 'WHK-02: a delivery is claimed');
select id as delivery, lease_id as lease from claimed \gset
begin;
select pg_temp.clock('89 s') \g /dev/null
select is((select count(*)::int from ojs.claim_webhooks()), 0,
    'WHK-02: nobody else gets it for its timeout and a minute');
select pg_temp.clock('91 s') \g /dev/null
select is((select id from ojs.claim_webhooks()), :'delivery'::uuid, 'WHK-02: then it is for another sender');
select is(pg_temp.finish('{"status_code": 200}'), 0, 'WHK-02: and no longer for the first');
rollback;
select is(pg_temp.refusal('select ojs.finish_webhooks(' || results || ')'), refused, 'finish: ' || results) from (values
    ('null', 'OJ100 INVALID_PAYLOAD results'), ($$'{}'$$, 'OJ100 INVALID_PAYLOAD results'),
    ($$'[]'$$, 'accepted')) c (results, refused);

-- By hand -------------------------------------------------------------------------------------------------------------

select pg_temp.life('{"status_code": 400}') \g /dev/null
select id as dead from ojs.webhook_deliveries \gset
select ojs.retry_webhook_delivery(:'dead') \g /dev/null
select is(pg_temp.states(), 'pending/0/400', 'WHK-02: a dead delivery is sent again'),
    is((select pending from ojs.webhooks), 1, 'WHK-02: and pending');
select is(pg_temp.life('{"status_code": 200}'), 'delivered', 'WHK-02: one that was delivered');
select is(pg_temp.refusal(format('select ojs.retry_webhook_delivery(%L)', id)), 'OJ105 INVALID_STATE_TRANSITION',
    'WHK-02: is not') from ojs.webhook_deliveries;
select is(ojs.test_webhook(:'id', :'dead') = :'dead' and ojs.test_webhook(:'id', :'dead') = :'dead', true,
    'WHK-01: a test is sent once');
truncate claimed;
select is(pg_temp.claim(), 1::bigint, 'WHK-01: it is claimed');
select is((select body::jsonb ->> 'type' from claimed), 'webhook.test', 'WHK-01: an event of its own'),
    is(pg_temp.finish('{"status_code": 500}'), 1, 'WHK-01: it fails');
select is((select state from ojs.webhook_deliveries where id = :'dead'), 'dead', 'WHK-01: and is not tried again');
select ojs.rotate_webhook_secret(:'id', 'the-new-secret') \g /dev/null
select pg_temp.deliveries(1) \g /dev/null
truncate claimed;
select pg_temp.claim() \g /dev/null
select is(substr(c.headers[7], 18), 'sha256=' || ojs_store.hmac_sha256('the-new-secret', stamp || '.' || c.body)
    || ',sha256=' || ojs_store.hmac_sha256('the-old-secret', stamp || '.' || c.body), 'WHK-01: both secrets sign')
from claimed c, substr(c.headers[6], 18) stamp;
begin;
select pg_temp.clock('25 h') \g /dev/null
select is((select headers[7] !~ ',' from ojs.claim_webhooks()), true, 'WHK-01: for a day');
rollback;

-- BOUNDS ------------------------------------------------------------------------------------------------------------

\o /dev/null
select pg_temp.hook('bounded', '{"events": ["job.enqueued"], "filter": {"queues": ["bounded"]}}');
update ojs_store.webhook_status set pending = 9998 where webhook = (select id from ojs.webhooks
    where url = 'https://bounded');
select ojs.push('a.b', to_jsonb(array[i]), queue => 'bounded') from generate_series(1, 5) i;
select id as last from ojs.push('a.b', queue => 'last') \gset
select pg_temp.delivered_up_to(:'last');
\o
select is((select concat_ws(' ', pending, dropped) from ojs.webhooks where url = 'https://bounded'), '10000 3',
    'WHK-02: of ten thousand pending deliveries it is not made more, and the rest is counted');
\o /dev/null
update ojs_store.webhook_status set pending = 2, pending_bytes = 64 * 1024 * 1024 - 1000
    where webhook = (select id from ojs.webhooks where url = 'https://bounded');
select ojs.push('a.b', to_jsonb(array[i]), queue => 'bounded') from generate_series(1, 5) i;
select id as last from ojs.push('a.b', queue => 'last') \gset
select pg_temp.delivered_up_to(:'last');
\o
select ok((select pending_bytes <= 64 * 1024 * 1024 and dropped > 3 from ojs_store.webhook_status
    where webhook = (select id from ojs.webhooks where url = 'https://bounded')), 'WHK-02: nor of 64 MB');
select is((select body ->> 'id' || (body -> 'data') from (select ojs_store.webhook_body(jsonb_build_object('id', 'e',
    'data', jsonb_build_object('a', 1, 'b', repeat('x', 70000))), null)::jsonb as body) b),
    'e{"a": 1, "truncated": true}', 'WHK-02: a large event keeps what is small in it');

\o /dev/null
select pg_temp.deliveries(0);
insert into ojs_store.webhook_delivery (id, webhook, event_id, event_type, state, attempts, created_at, finished_at)
select gen_random_uuid(), w.id, 'e', 'job.enqueued', s, 1, now(), now() - make_interval(secs => i)
from ojs.webhooks w, generate_series(1, 1005) i, unnest('{delivered,dead}'::text[]) s where w.url = 'https://bounded';
insert into ojs_store.webhook_delivery (id, webhook, event_id, event_type, state, attempts, created_at, finished_at)
select gen_random_uuid(), w.id, 'e', 'job.enqueued', 'dead', 1, now(), now() - interval '31 days'
from ojs.webhooks w where w.url = 'https://all';
update ojs_store.webhook_cursor set tidied_at = '-infinity';
select pg_temp.ticks_until($$select count(*) = 2000 from ojs.webhook_deliveries where state <> 'pending'$$);
\o
select is((select array_agg(n order by url, state) from (select w.url, d.state, count(*) as n
    from ojs.webhook_deliveries d join ojs.webhooks w on w.id = d.webhook where d.state <> 'pending' group by 1, 2) c),
    '{1000,1000}', 'WHK-02: the last thousand of each end are kept, for thirty days');

-- The worker may make them as well: each call is a transaction of its own, or a part of one.
\o /dev/null
begin;
select ojs.create_webhook('{"url": "https://many", "events": ["job.enqueued"], "filter": {"queues": ["many"]}}')
from generate_series(1, 98);
commit;
select count(ojs.push('a.b', to_jsonb(array[i]), queue => 'many')) from generate_series(1, 110) i;
select id as last from ojs.push('a.b', queue => 'last') \gset
select pg_temp.delivered_up_to(:'last');
\o
select is((select count(*)::int from ojs.webhook_deliveries d join ojs.webhooks w on w.id = d.webhook
    where w.url = 'https://many'), 98 * 110, 'WHK-02: a hundred subscriptions get each event'),
    ok((select max(n) from (select count(*) as n from ojs_store.webhook_delivery group by xmin::text) made)
        between 2 and 10000, 'WHK-02: not all at once, so no other duty waits for long');
select ojs.drop_webhook(id) from ojs.webhooks where url = 'https://many' \g /dev/null

-- WHEN SOMETHING IS WRONG -------------------------------------------------------------------------------------------

begin;
alter function ojs_store.tend_webhooks(int) rename to broken;
select is(ojs.tick() -> 'failed', '["webhooks"]', 'the duty fails alone');
select is((select f ->> 'message' from jsonb_array_elements(ojs.health() #> '{upkeep,failing}') f
    where f ->> 'duty' = 'webhooks'), 'function ojs_store.tend_webhooks(integer) does not exist', 'and health says so');
rollback;
delete from ojs_store.webhook_cursor;
select pg_temp.ticks_until('select exists (select from ojs_store.webhook_cursor)') \g /dev/null
select is((select missed from ojs_store.webhook_cursor), 1::bigint,
    'after a restore it goes on from now, and counts it');
update ojs_store.webhook_cursor set cursor = '99999999999.0';
select pg_temp.ticks_until('select missed = 2 from ojs_store.webhook_cursor') \g /dev/null
select is((select missed from ojs_store.webhook_cursor), 2::bigint, 'as with the cursor of another server');
select is(ojs.health() #>> '{webhooks,missed}', '2', 'health says so');
select ok(ojs.metrics() ~ 'ojs_webhook_subscriptions 2\n.*ojs_webhook_delivery_total\{outcome="delivered"\} [0-9]+\n',
    'and the metrics');

-- OVER HTTP ---------------------------------------------------------------------------------------------------------

select pg_temp.keep(pg_temp.http('POST', '/ojs/v1/webhooks/subscriptions', '{"url": "https://example.com/hook",
    "events": ["job.completed"], "secret": "whk_test_http"}')) \g /dev/null
select is(pg_temp.got('status'), '201', 'WHK-01: made over HTTP'),
    is(pg_temp.got('body.subscription.id'), pg_temp.got('body.id'), 'HTTP-12: in the wrapper, too'),
    matches(pg_temp.got('body.id'), '^sub_[0-9a-f-]{36}$', 'WHK-01: with the prefix of the document'),
    is(pg_temp.got('body.secret'), 'whk_test_http', 'WHK-01: with its secret');
select pg_temp.got('body.id') as sub \gset
select is(pg_temp.http('GET', path) #>> '{body,subscription,url}', 'https://example.com/hook', 'WHK-01: GET ' || path),
    is(pg_temp.http('GET', path) -> 'body' -> 'secret', null, 'WHK-01: without its secret')
from unnest(array['/ojs/v1/webhooks/subscriptions/' || :'sub', '/ojs/v1/webhooks/subscriptions/' || substr(:'sub', 5)])
    path;
select is(pg_temp.http('PATCH', '/ojs/v1/webhooks/subscriptions/' || :'sub', '{"events": ["*"], "active": false}')
    #> '{body,events}', '["*"]', 'WHK-01: PATCH');
select is(pg_temp.http('POST', '/ojs/v1/webhooks/subscriptions/' || :'sub' || '/rotate-secret') #>> '{body,secret}'
    ~ '^whsec_', true, 'WHK-01: rotate-secret shows the new one');
select is(pg_temp.error('POST', '/ojs/v1/webhooks/subscriptions/' || :'sub' || '/test'), '409 conflict',
    'WHK-01: nothing is sent to one that is not active');
select pg_temp.http('PATCH', '/ojs/v1/webhooks/subscriptions/' || :'sub', '{"active": true}') \g /dev/null
select is(pg_temp.http('POST', '/ojs/v1/webhooks/subscriptions/' || :'sub' || '/test', null,
    '{"X-Request-Id": "r1", "OJS-Do-Not-Wait": "1"}') #>> '{headers,OJS-Would-Wait}', '30',
    'WHK-01: a test that the gateway waits for');
select is(pg_temp.http('GET', '/ojs/v1/webhooks/deliveries?status=pending&subscription_id=' || :'sub')
    #>> '{body,deliveries,0,event_type}', 'webhook.test', 'WHK-02: deliveries are listed');
select is(jsonb_array_length(r #> '{body,deliveries}') || (r #>> '{body,has_more}'), '2true', 'WHK-02: in pages'),
    is(pg_temp.http('GET', '/ojs/v1/webhooks/deliveries?limit=1&after=' || (r #>> '{body,deliveries,0,id}'))
        #> '{body,deliveries,0}', r #> '{body,deliveries,1}', 'WHK-02: one after the other')
from pg_temp.http('GET', '/ojs/v1/webhooks/deliveries?limit=2') r;
select 'del_' || id as delivery from ojs.webhook_deliveries where event_type = 'webhook.test' limit 1 \gset
select is(pg_temp.http('GET', '/ojs/v1/webhooks/deliveries/' || :'delivery') #>> '{body,payload,type}', 'webhook.test',
    'WHK-02: one is shown with its payload'),
    is(pg_temp.http('POST', '/ojs/v1/webhooks/deliveries/' || :'delivery' || '/retry') #>> '{body,status}', 'pending',
    'WHK-02: and sent again');
select is(pg_temp.error(method, path, case when method = 'PATCH' then '{}'::jsonb end), '404 not_found',
    format('WHK-01: %s %s', method, path))
from (values ('GET', '/subscriptions/x'), ('GET', '/subscriptions/sub_00000000-0000-0000-0000-000000000000'),
    ('PATCH', '/subscriptions/sub_00000000-0000-0000-0000-000000000000'), ('DELETE', '/subscriptions/sub_'),
    ('POST', '/subscriptions/x/test'), ('POST', '/subscriptions/x/rotate-secret'), ('GET', '/deliveries/x'),
    ('GET', '/deliveries/del_00000000-0000-0000-0000-000000000000'), ('POST', '/deliveries/x/retry'))
    c (method, rest), concat('/ojs/v1/webhooks', rest) path;
select is(pg_temp.as_role(role, 'GET', '/ojs/v1/webhooks/' || what, null), '403 permission_denied',
    format('WHK-01: %s is not for %s', what, role))
from unnest('{ojs_producer,ojs_worker,ojs_observer}'::name[]) role, unnest('{subscriptions,deliveries}'::text[]) what;
select is(pg_temp.http('DELETE', '/ojs/v1/webhooks/subscriptions/' || :'sub') ->> 'status', '204', 'WHK-01: DELETE'),
    is(pg_temp.error('DELETE', '/ojs/v1/webhooks/subscriptions/' || :'sub'), '404 not_found', 'WHK-01: once');
select * from finish();
