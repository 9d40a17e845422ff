"""growth_operations.py: sets of data, and the operations that bench/growth measures on each.

`fill` brings a set from :from - 1 to :to. An operation is (name, preparation, statement) and, where the cost may grow,
the power of the size by which it may. The preparation is not measured; what it selects with \\gset stands for :'name'.
"""
import re

HELPERS = r"""
create sequence seconds increment 2;
create procedure push_many(n bigint, queue text, more jsonb default '{}') language plpgsql as $$
begin
    while n > 0 loop
        perform from ojs.push_many((
            select jsonb_agg(jsonb_build_object('type', 'bench.job', 'queue', queue, 'args', jsonb_build_array(i))
                || more)
            from generate_series(1, least(n, 5000)) i));
        n := n - 5000;
        commit;
    end loop;
end $$;
create procedure finish(n bigint, queue text) language plpgsql as $$
begin
    while n > 0 loop
        perform from ojs.ack_many('w', array(select id from ojs.claim(queue, 'w', 1000)));
        n := n - 1000;
        commit;
    end loop;
end $$;
create procedure hold(n bigint, queue text) language plpgsql as $$
begin
    while n > 0 loop
        perform from ojs.claim(queue, 'holder ' || n / 10, least(n, 1000)::int, '24 h');
        n := n - 1000;
        commit;
    end loop;
end $$;
create procedure fail(n bigint, queue text) language plpgsql as $$
declare
    ids uuid[];
begin
    while n > 0 loop
        ids := array(select id from ojs.claim(queue, 'w', 1000));
        perform ojs.fail(id, '{"type": "Net", "message": "m"}') from unnest(ids) id;
        n := n - 1000;
        commit;
    end loop;
end $$;
-- Pushes, and then finishes, holds or fails, so that the tables of what waits stay small.
create procedure in_parts(n bigint, verb text, queue text, more jsonb default '{}') language plpgsql as $$
begin
    while n > 0 loop
        call push_many(least(n, 200), queue, more);
        case verb
        when 'finish' then call finish(least(n, 200), queue);
        when 'hold' then call hold(least(n, 200), queue);
        when 'fail' then call fail(least(n, 200), queue);
        end case;
        n := n - 200;
    end loop;
end $$;
-- Jobs :from to :to of a queue wait for the limits of some keys, in turn. The jobs that use these up are held.
create procedure limited(first int, last int, keys int) language plpgsql as $$
begin
    perform ojs.create_queue('q');
    for part in first .. last by 1000 loop
        perform from ojs.push_many((
            select jsonb_agg(jsonb_build_object('type', 'bench.job', 'queue', 'q', 'args', '[]'::jsonb,
                'options', jsonb_build_object('rate_limit',
                    jsonb_build_object('key', 'k' || first + i % keys, 'concurrency', 1))) order by i)
            from generate_series(part - first, least(part + 999, last) - first) i));
        commit;
    end loop;
    for i in 1 .. 3 + keys / 1000 loop
        perform ojs.claim('q', 'holder', 1000, '24 h');
        commit;
    end loop;
end $$;
create function http(method text, path text, body text default null) returns int language sql as $$
    select h.status from ojs.http(method, path, '{"content-type": "application/openjobspec+json"}', body) h
$$;
"""

def in_parts(verb, more=""):
    """What fills a set by in_parts(), and vacuums now and then, as autovacuum would."""
    return (f"select format('call in_parts(%s, ''{verb}'', ''q''{more})', least(1000, :to - i + 1)), 'vacuum "
            "ojs_store.ready, ojs_store.lease, ojs_store.limit_use' from generate_series(:from, :to, 1000) i \\gexec")


LINEAR = 1 # what the operation looks at: all open jobs, all leases, all workers, or as many as there are keys

# Claims that meet jobs behind used-up limits put them in order, where each is a transaction of its own.
SETTLE = "\nselect 'select from ojs.claim(''q'', ''w'')' from generate_series(1, 3 + (:to - :from) / 1000) \\gexec"

RATE = '"rate_limit": {"key": "k", "rate": {"limit": 1000000, "period": "PT24H"}}'

HELD = "select from ojs.push('bench.job', queue => 'alone');\nselect id from ojs.claim('alone', 'w') \\gset"

HOT_PATH = [
    ("push", "", "select ojs.push('bench.job', queue => 'other')"),
    ("push of a unique job",
     "",
     "select ojs.push('bench.job', jsonb_build_array(random()), queue => 'other', \"unique\" => '{\"keys\": "
     "[\"type\", \"args\"]}')"),
    ("claim", "", "select ojs.claim('q', 'w')"),
    ("ack", HELD, "select ojs.ack(:'id')"),
    ("fail", HELD, "select ojs.fail(:'id', '{\"type\": \"t\", \"message\": \"m\"}')"),
    ("nack", HELD, "select ojs.nack(:'id', '1 h')"),
    ("extend", HELD, "select ojs.extend(:'id', '1 h')"),
    ("beat", HELD, "select ojs.beat('w', array[:'id'::uuid])"),
    ("cancel", "select id from ojs.push('bench.job', queue => 'alone') \\gset", "select ojs.cancel(:'id')"),
    ("claim_and_ack", HELD, "select ojs.ack_and_claim('w', 'q', array[:'id'::uuid])"),
    ("tick", "select ojs.tick();", "select ojs.tick()"),
]

LOOKS = [
    ("info", "select id from ojs_store.job limit 1 \\gset", "select ojs.info(:'id')"),
    ("explain_job", "select id from ojs_store.job limit 1 \\gset", "select ojs.explain_job(:'id')"),
    ("jobs by id", "select id from ojs_store.job limit 1 \\gset", "select * from ojs.jobs where id = :'id'"),
    ("newest jobs", "", "select * from ojs.jobs order by id desc limit 10"),
    ("list_jobs", "", "select ojs.list_jobs(max => 20)"),
    ("list_jobs of a queue and state",
     "",
     "select ojs.list_jobs(queue => 'q', state => 'available', max => 20)", 0.2),
    ("list_jobs of a state", "", "select ojs.list_jobs(state => 'active', max => 20)", 0.2),
    ("list_jobs of a type", "", "select ojs.list_jobs(type => 'bench.*', max => 20)"),
    # No index knows types, errors and metadata: every push or end of a job would pay for it.
    ("list_jobs of a type that there is not", "", "select ojs.list_jobs(type => 'none.*', max => 20)", LINEAR),
    ("queue_info", "", "select ojs.queue_info('q')"),
    ("queue_info after a write",
     "select ojs.queue_info('q') \\g /dev/null",
     "select ojs.queue_info('q') from (select ojs.push('bench.job', queue => 'other') offset 0) p"),
    ("queue_stats of a queue", "", "select ojs.queue_stats('q')"),
    ("queue_stats", "", "select ojs.queue_stats()"),
    ("metrics", "", "select ojs.metrics()"),
    ("health", "", "select ojs.health()"),
    ("set_rate_limit", "", "select ojs.set_rate_limit('some', '{\"concurrency\": 3}')"),
    ("GET rate-limits", "", "select http('GET', '/ojs/v1/rate-limits')"),
    ("GET rate-limits/:key", "", "select http('GET', '/ojs/v1/rate-limits/some')"),
    ("GET jobs/:id", "select id from ojs_store.job limit 1 \\gset", "select http('GET', '/ojs/v1/jobs/' || :'id')"),
    ("GET admin/jobs", "", "select http('GET', '/ojs/v1/admin/jobs')"),
    ("GET admin/jobs?queue&state", "", "select http('GET', '/ojs/v1/admin/jobs?queue=q&state=available')", 0.2),
    ("GET admin/jobs?type", "", "select http('GET', '/ojs/v1/admin/jobs?type=none')", LINEAR),
    ("GET admin/stats", "", "select http('GET', '/ojs/v1/admin/stats')"),
    ("GET admin/stats/history", "", "select http('GET', '/ojs/v1/admin/stats/history')"),
    ("GET admin/queues", "", "select http('GET', '/ojs/v1/admin/queues')"),
    ("GET admin/workers", "", "select http('GET', '/ojs/v1/admin/workers')", LINEAR),
    ("GET unique-jobs", "", "select http('GET', '/ojs/v1/unique-jobs')"),
    ("events", "", "select ojs.events(max => 100)", 0.1), # each job is looked up by several indexes
    ("events, what comes next",
     "select ojs.events(after => 'now') ->> 'cursor' as cursor \\gset\nselect ojs.push('bench.job', queue => "
     "'other');",
     "select ojs.events(:'cursor')", LINEAR), # without ojs.index_events() every job is looked at
    ("events from now", "", "select ojs.events('now')"),
]

# As with lists, no index knows types.
BULK = [
    ("cancel_many by a type that there is not", "", "select ojs.cancel_many('{\"type\": \"none.x\"}', true)", LINEAR),
    ("cancel_many of ten",
     "select string_agg(to_json(id)::text, ',') as ids from ojs.push_many((select jsonb_agg('{\"type\": "
     "\"bench.few\", \"args\": [], \"queue\": \"few\"}'::jsonb) from generate_series(1, 10))) \\gset",
     "select ojs.cancel_many('{\"queue\": \"few\"}', true)"),
    # No index knows the queues of what has finished.
    ("delete_many of a queue that has none", "", "select ojs.delete_many('{\"queue\": \"none\"}', true)", LINEAR),
    ("retry_many by a type that there is not", "", "select ojs.retry_many('{\"type\": \"none.x\"}', true)", LINEAR),
]

# What empties a queue call by call looks at no more each time than it takes.
FIRST_TEN = [
    ("cancel_many of the first ten",
     "",
     "select ojs.cancel_many('{\"queue\": \"q\"}', true) from set_config('ojs.max_batch_size', '10', true)"),
]

TOPICS = [
    ("lease_ack",
     "select id from ojs.push('bench.job', queue => 'alone') \\gset\nselect ojs.lease_claim('alone', '{\"node\": "
     "\"n\"}') #>> '{claimed,0,$seq}' as seq \\gset",
     "select ojs.lease_ack('alone', jsonb_build_object('node', 'n', 'seqs', array[:seq]))"),
    ("lease_nack",
     "select id from ojs.push('bench.job', queue => 'alone') \\gset\nselect ojs.lease_claim('alone', '{\"node\": "
     "\"n\"}') #>> '{claimed,0,$seq}' as seq \\gset",
     "select ojs.lease_nack('alone', jsonb_build_object('node', 'n', 'seqs', array[:seq]))"),
    ("lease_extend",
     "select id from ojs.push('bench.job', queue => 'alone') \\gset\nselect ojs.lease_claim('alone', '{\"node\": "
     "\"n\"}') #>> '{claimed,0,$seq}' as seq \\gset",
     "select ojs.lease_extend('alone', jsonb_build_object('node', 'n', 'lease_ms', 1000, 'seqs', array[:seq]))"),
]

PUSHED = "select id from ojs.push('bench.job', queue => 'alone') \\gset"
PENDING = ("select ojs.push_job('{\"type\": \"bench.job\", \"args\": [], \"queue\": \"alone\", \"pending\": true}')"
           " ->> 'id' as id \\gset")
SAVED = HELD + "\nselect from ojs.checkpoint(:'id', '{}');"
ENDED = HELD + "\nselect from ojs.ack(:'id');"
CHAIN = '{"type": "chain", "steps": [{"type": "bench.job", "args": [], "queue": "alone"}]}'
WORKFLOW = f"select ojs.create_workflow('{CHAIN}') ->> 'id' as id \\gset"
A_QUEUE = "select from ojs.create_queue('spare');"

# What is about one job, worker, workflow or queue, or returns as much as there is of something else.
OTHERS = [
    ("push_job", "", "select ojs.push_job('{\"type\": \"bench.job\", \"args\": [], \"queue\": \"alone\"}')"),
    ("push_many", "", "select ojs.push_many(jsonb_agg('{\"type\": \"bench.job\", \"args\": [], \"queue\": \"alone\"}'"
     "::jsonb)) from generate_series(1, 10)"),
    ("ack_many", HELD, "select ojs.ack_many('w', array[:'id'::uuid])"),
    ("nack_many", HELD, "select ojs.nack_many('w', array[:'id'::uuid], '1 h')"),
    ("extend_many", HELD, "select ojs.extend_many('w', array[:'id'::uuid], '1 h')"),
    ("activate", PENDING, "select ojs.activate(:'id')"),
    ("discard", PUSHED, "select ojs.discard(:'id')"),
    ("delete_job", ENDED, "select ojs.delete_job(:'id')"),
    ("set_priority", PUSHED, "select ojs.set_priority(:'id', 5)"),
    ("claim_pool", "select from ojs.set_pool('pool', '{\"queues\": [\"q\", \"alone\"]}');",
     "select ojs.claim_pool('pool', 'w')"),
    ("progress", HELD, "select ojs.progress(:'id', 0.5)"),
    ("checkpoint", HELD, "select ojs.checkpoint(:'id', '{}')"),
    ("get_checkpoint", SAVED, "select ojs.get_checkpoint(:'id')"),
    ("delete_checkpoint", SAVED, "select ojs.delete_checkpoint(:'id')", 0.1), # passes over those deleted before
    ("wait_result", ENDED, "select ojs.wait_result(:'id', '1 s')"),
    ("results", ENDED, "select ojs.results(array[:'id'::uuid])"),
    ("lineage", PUSHED, "select ojs.lineage(:'id')"),
    ("once", "", "select ojs.once(random()::text)"),
    ("lease_claim", PUSHED, "select ojs.lease_claim('alone', '{\"node\": \"n\"}')"),
    ("workflow", WORKFLOW, "select ojs.workflow(:'id')"),
    ("create_workflow", "", f"select ojs.create_workflow('{CHAIN}')"),
    ("cancel_workflow", WORKFLOW, "select ojs.cancel_workflow(:'id')"),
    ("set_worker_state", "select from ojs.register_worker('told');", "select ojs.set_worker_state('told', 'quiet')"),
    ("create_queue", "", "select ojs.create_queue('new' || random())"),
    ("configure_queue", A_QUEUE, "select ojs.configure_queue('spare', '{\"max_size\": 10}')"),
    ("pause_queue", A_QUEUE, "select ojs.pause_queue('spare')"),
    ("resume_queue", A_QUEUE, "select ojs.resume_queue('spare')"),
    ("drain_queue", A_QUEUE, "select ojs.drain_queue('spare')"),
    ("purge_queue of none", A_QUEUE, "select ojs.purge_queue('spare', confirm => true)", LINEAR),
    ("drop_queue", A_QUEUE, "select ojs.drop_queue('spare')", LINEAR),
    ("key_held", "", "select ojs.key_held('00')"),
    ("held_slots", "", "select ojs.held_slots()", LINEAR), # of the keys that are held
    ("waiting", "", "select ojs.waiting()"),
    ("scheduling_stats", "", "select ojs.scheduling_stats()"),
    ("tenant_stats", "", "select ojs.tenant_stats()"),
    ("free_deduplication_key", "", "select ojs.free_deduplication_key('q', 'none')"),
    ("skip_ordering_key",
     "select from ojs.push('bench.job', queue => 'lined', options => '{\"ordering_key\": \"k\"}');",
     "select ojs.skip_ordering_key('lined', 'k')"),
    ("claim_webhooks", "", "select ojs.claim_webhooks()"),
    ("ready", "", "select ojs.ready()"),
    ("manifest", "", "select ojs.manifest()"),
    ("fingerprint", "", "select ojs.fingerprint('{\"type\": \"bench.job\", \"args\": [], \"unique\": {}}')"),
    ("unschedule", "select from ojs.schedule('gone', '0 0 1 1 *', '{\"type\": \"bench.cron\", \"args\": []}');",
     "select ojs.unschedule('gone')"),
    ("view rate_limits", "", "select * from ojs.rate_limits", LINEAR),
    ("view leases", "", "select * from ojs.leases", LINEAR),
    ("view events", "", "select * from ojs.events limit 10", LINEAR), # in no order: by job_id, or with a cursor
    ("events of a job", PUSHED, "select * from ojs.events where job_id = :'id'", LINEAR), # leases have no index for it
    ("view pools", "", "select * from ojs.pools", LINEAR), # the leases say which workers are active
    *((f"view {view}", "", f"select * from ojs.{view}") for view in (
        "audit", "crons", "deduplication_keys", "hooks", "lease_log", "queues", "schemas", "tenant_roles", "tenants",
        "webhook_deliveries", "webhooks")),
]

def linear(operations, *names):
    """These operations, of which some may cost as much more as there is more."""
    return [(*operation[:3], LINEAR) if operation[0] in names else operation for operation in operations]


DATA = {
    "ready": {
        "by": "available jobs",
        "fill": "call push_many(:to - :from + 1, 'q');",
        "operations": HOT_PATH + LOOKS + OTHERS + BULK + FIRST_TEN,
    },
    "finished": {
        "by": "finished jobs",
        "fill": in_parts("finish") + "\ncall push_many(10, 'q');",
        "operations": HOT_PATH + LOOKS + OTHERS + BULK + [
            ("delete_many by a type that there is not",
             "",
             "select ojs.delete_many('{\"type\": \"none.x\"}', true)", LINEAR),
        ],
    },
    "scheduled": {
        "by": "scheduled jobs",
        "fill": "call push_many(:to - :from + 1, 'q', '{\"options\": {\"delay_until\": \"+PT24H\"}}');\ncall "
                "push_many(10, 'q');",
        # No index knows the queues of what waits for its time.
        "operations": linear(HOT_PATH + LOOKS + BULK, "cancel_many of ten") + FIRST_TEN,
    },
    "leases": {
        "by": "leases",
        "fill": in_parts("hold") + "\ncall push_many(10, 'q');",
        "operations": linear(HOT_PATH + LOOKS + OTHERS, "GET admin/stats") + TOPICS + [
            ("explain_job of an active one",
             "select job_id as id from ojs_store.lease limit 1 \\gset",
             "select ojs.explain_job(:'id')"),
            ("leases of a job",
             "select job_id as id from ojs_store.lease limit 1 \\gset",
             "select * from ojs.leases where job_id = :'id'", LINEAR),
            ("deregister_worker",
             "select from ojs.claim('q', 'goes', 3);",
             "select ojs.deregister_worker('goes', true)", LINEAR),
            # No index knows the workers of leases: every claim would pay for it.
            ("workers", "", "select * from ojs.workers limit 10", LINEAR),
        ],
    },
    "dead": {
        "by": "dead letters", "scale": 0.2,
        "fill": "select ojs.create_queue('q', '{\"dead_letter_max_size\": 0}');\n"
                + in_parts("fail", ", ''{\"retry\": {\"max_attempts\": 1, \"on_exhaustion\": \"dead_letter\"}}''")
                + "\ncall push_many(10, 'q');",
        "operations": HOT_PATH + LOOKS + BULK + [
            ("dead letter by id",
             "select job_id as id from ojs_store.dead_letter order by job_id desc limit 1 \\gset",
             "select * from ojs.dead_letters where id = :'id'"),
            ("newest dead letters", "", "select * from ojs.dead_letters order by id desc limit 10"),
            ("dead_letter_stats", "", "select ojs.dead_letter_stats()", LINEAR), # a short row of each has its error
            ("retry",
             "select job_id as id from ojs_store.dead_letter order by job_id desc limit 1 \\gset",
             "select ojs.retry(:'id')"),
            ("GET dead-letter", "", "select http('GET', '/ojs/v1/dead-letter')"),
            ("GET dead-letter/:id",
             "select job_id as id from ojs_store.dead_letter order by job_id desc limit 1 \\gset",
             "select http('GET', '/ojs/v1/dead-letter/' || :'id')"),
            ("GET admin/dead-letter", "", "select http('GET', '/ojs/v1/admin/dead-letter')"),
            ("GET admin/dead-letter?error_type",
             "",
             "select http('GET', '/ojs/v1/admin/dead-letter?error_type=None')", LINEAR),
            # Once after a change of the queue or of the clock a tick looks at all dead letters, by a plan or another.
            ("tick with a replay rule that finds nothing",
             "select ojs.configure_queue('q', '{\"replay_rules\": [{\"name\": \"none\", \"filter\": {\"type\": "
             "\"none\"}, \"delay\": \"PT1S\", \"max_replays\": 2}]}');\nset ojs.clock_offset = '20 s'; select "
             "ojs.tick();\nset ojs.clock_offset = '40 s';",
             "select ojs.tick()", LINEAR),
        ],
    },
    "queues": {
        "by": "queues", "scale": 0.1,
        "fill": "select count(ojs.push('bench.job', queue => 'q' || i)) from generate_series(:from, :to) i;\ncall "
                "push_many(10, 'q');",
        # These look at each queue.
        "operations": linear(HOT_PATH + LOOKS + BULK,
                            "queue_stats", "metrics", "health",
                            "GET admin/stats", "GET admin/stats/history", "events", "GET admin/queues",
                            "set_rate_limit", "GET rate-limits", "GET rate-limits/:key"),
    },
    "limits": {
        "by": "jobs behind used-up limits of 50 keys", "scale": 3,
        "fill": "call limited(:from, :to, 50);" + SETTLE,
        "operations": HOT_PATH[:2] + [
            ("claim", "", "select ojs.claim('q', 'w')", 0.1),
            ("claim that finds nothing", "select from ojs.claim('q', 'w');", "select ojs.claim('q', 'w')", 0.1),
            ("first claim of a session", "\\c -", "select ojs.claim('q', 'w')", 0.1),
            ("claim of a slot that is free",
             "select ojs.nack(job_id) from ojs_store.lease order by job_id desc limit 1;",
             "select ojs.claim('q', 'holder', lease => '24 h')"),
        ],
    },
    "starts": {
        "by": "starts of a limit within its period", "scale": 15,
        "fill": in_parts("finish", f", ''{{{RATE}}}''"),
        "operations": [
            ("POST jobs of the limit", "",
             f"select http('POST', '/ojs/v1/jobs', '{{\"type\": \"bench.job\", \"args\": [], {RATE}}}')"),
            ("claim and ack of the limit",
             f"select from ojs.push_job('{{\"type\": \"bench.job\", \"args\": [], \"queue\": \"one\", {RATE}}}');",
             "select (ojs.ack(id)).state from ojs.claim('one', 'w')"),
        ],
    },
    "places": {
        "by": "held jobs of a concurrency limit", "scale": 0.1,
        "fill": "select ojs.create_queue('q', '{\"concurrency\": 1000000}');\n" + in_parts("hold")
                + "\ncall push_many(50, 'q');",
        "operations": [
            ("claim", "", "select ojs.claim('q', 'w')"),
            ("ack", "select id from ojs.claim('q', 'w') \\gset", "select ojs.ack(:'id')"),
        ],
    },
    "limit_keys": {
        "by": "keys of limits", "scale": 0.1,
        "fill": "call limited(:from, :to, (:to - :from + 1) / 2);" + SETTLE,
        "operations": [
            ("claim that finds nothing", "select from ojs.claim('q', 'w');", "select ojs.claim('q', 'w')", LINEAR),
            ("explain_job", "select id from ojs_store.job limit 1 \\gset", "select ojs.explain_job(:'id')"),
            # Which jobs wait for a key, the jobs alone know.
            ("set_rate_limit", "", "select ojs.set_rate_limit('some', '{\"concurrency\": 3}')", LINEAR),
            ("GET rate-limits/:key", "", "select http('GET', '/ojs/v1/rate-limits/k1')", LINEAR),
            ("GET rate-limits", "", "select http('GET', '/ojs/v1/rate-limits')", LINEAR),
        ],
    },
    "unique": {
        "by": "open jobs of one fingerprint", "scale": 0.03,
        "fill": "select count(ojs.push('bench.job', queue => 'q', \"unique\" => '{\"states\": [\"completed\"]}')) from "
                "generate_series(:from, :to);",
        "operations": [
            ("push of a unique job",
             "",
             "select ojs.push('bench.job', queue => 'q', \"unique\" => '{\"states\": [\"completed\"]}')", LINEAR),
        ],
    },
    "period": {
        "by": "jobs of one fingerprint with a period", "scale": 0.03,
        "fill": "select format('set ojs.clock_offset = ''%s s''', nextval('seconds')), 'select from "
                "ojs.push(''bench.job'', queue => ''q'', \"unique\" => ''{\"period\": \"PT1S\", \"on_conflict\": "
                "\"ignore\"}'')' from generate_series(:from, :to) i \\gexec",
        "operations": [
            ("push of a unique job",
             "select set_config('ojs.clock_offset', nextval('seconds') || ' s', false);",
             "select ojs.push('bench.job', queue => 'q', \"unique\" => '{\"period\": \"PT1S\", \"on_conflict\": "
             "\"ignore\"}')", 0.1), # the list of those that are open is written anew
            ("push that replaces",
             "select set_config('ojs.clock_offset', nextval('seconds') || ' s', false);",
             "select ojs.push('bench.job', queue => 'q', \"unique\" => '{\"period\": \"PT1S\", \"on_conflict\": "
             "\"replace\"}')", 0.1),
        ],
    },
    "lists": {
        "by": "jobs beside a queue that names its readers", "scale": 0.2,
        "fill": "select ojs.create_queue('vault', '{\"readers\": [\"ojs_admin\"]}');\n"
                "call push_many(:to - :from + 1, 'q');\nanalyze ojs_store.job;",
        "operations": [
            ("newest jobs", "", "select * from ojs.jobs order by id desc limit 10"),
            ("jobs by id", "select id from ojs_store.job limit 1 \\gset", "select * from ojs.jobs where id = :'id'"),
            ("list_jobs", "", "select ojs.list_jobs(max => 20)"),
        ],
    },
    "workflows": {
        "by": "workflows", "scale": 0.1,
        "fill": "select count(ojs.create_workflow('{\"type\": \"group\", \"jobs\": [{\"type\": \"bench.job\", "
                "\"args\": [], \"queue\": \"q\"}]}')) from generate_series(:from, :to);",
        "operations": [
            ("newest workflows", "", "select * from ojs.workflows order by id desc limit 10"),
            ("GET workflows", "", "select http('GET', '/ojs/v1/workflows?limit=10')"),
        ],
    },
    "workers": {
        "by": "workers", "scale": 0.1,
        "fill": "select count(ojs.register_worker('w' || i)) from generate_series(:from, :to) i;\ncall push_many(10, "
                "'q');",
        "operations": HOT_PATH + [
            ("register_worker", "", "select ojs.register_worker('new')", LINEAR),
            ("GET admin/workers", "", "select http('GET', '/ojs/v1/admin/workers')", LINEAR),
            ("GET workers/:id/health", "", "select http('GET', '/ojs/v1/workers/w1/health')"),
        ],
    },
    "crons": {
        "by": "cron entries", "scale": 0.02,
        "fill": "select count(ojs.schedule('c' || i, '0 0 1 1 *', '{\"type\": \"bench.cron\", \"args\": []}')) from "
                "generate_series(:from, :to) i;\ncall push_many(10, 'q');",
        "operations": HOT_PATH + [
            ("GET cron/:name", "", "select http('GET', '/ojs/v1/cron/c1')"),
            ("schedule", "", "select ojs.schedule('new', '0 0 1 1 *', '{\"type\": \"bench.cron\", \"args\": []}')"),
        ],
    },
    "cron_runs": {
        "by": "runs of a cron entry that wait", "scale": 0.3,
        "fill": "select ojs.schedule('c', '0 0 1 1 *', '{\"type\": \"bench.cron\", \"args\": []}', "
                "'{\"overlap_policy\": \"enqueue\"}');\n"
                "insert into ojs_store.cron_run select 'c', (ojs.push_job(jsonb_build_object('type', 'bench.cron', "
                "'args', '[]'::jsonb, 'pending', i > 1)) ->> 'id')::uuid, now() - make_interval(secs => 1e6 - i), "
                "i > 1 from generate_series(:from, :to) i;",
        "operations": [
            ("tick", "select ojs.tick();", "select ojs.tick()"),
            ("tick that makes a run",
             "update ojs_store.cron set next_run_at = now(), due_at = now();",
             "select ojs.tick()"),
        ],
    },
    "many_queues": {
        "by": "queues in a call", "scale": 0.01,
        "fill": "select count(ojs.create_queue('q' || i)) from generate_series(:from, :to) i;\nselect "
                "ojs.create_queue('alone');",
        "operations": [
            ("claim of many queues, all empty",
             "",
             "select ojs.claim(array(select name from ojs.queues), 'w')", LINEAR),
        ],
    },
}

# Public functions and views that are in no operation, and why.
NOT_MEASURED = {
    "is what the operations over HTTP call": "http",
    "reads nothing but what it is given":
        "canonical_json capabilities envelope fingerprint_input key_slot node_of storable version",
    "waits, or is part of what is measured": "work_open work_next work_close start_worker",
    "writes a row of a small table":
        "set_pool bind_tenant unbind_tenant create_schema drop_schema set_schema_validation drop_pool set_tenant "
        "drop_tenant register_hook unregister_hook set_maintenance notify_events",
    "is about one webhook":
        "create_webhook update_webhook drop_webhook rotate_webhook_secret test_webhook retry_webhook_delivery "
        "finish_webhooks",
    "is meant to read or remove everything": "index_events reset",
    "is about one workflow": "extend_workflow",
}


def covered():
    """The names of public functions and views that are measured, or not to be."""
    names = set(re.findall(r"\bojs\.(\w+)", " ".join(operation[2] for data in DATA.values()
                                                   for operation in data["operations"])))
    return sorted(names.union(*(named.split() for named in NOT_MEASURED.values())))
