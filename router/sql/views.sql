-- views.sql: what all nodes have, as the views of a node show it.

create view ojs.queues as
select a.name, case when count(distinct a.state) = 1 then min(a.state)
    else 'mixed' end as state, min(a.created_at) as created_at,
    ojs_router.merged_config(array_agg(a.config order by a.node)) as config
from ojs_router.all_queues() a group by a.name;
create view ojs.workers as
select a.worker, (array_agg(a.status order by a.last_seen_at desc nulls last))[1] as status,
    (array_agg(a.state order by a.last_seen_at desc nulls last))[1] as state, min(a.directive) as directive,
        min(a.registered_at) as registered_at,
    max(a.last_seen_at) as last_seen_at, max(a.died_at) as died_at, min(a.hostname) as hostname, min(a.pid) as pid,
    (array_agg(a.queues::text) filter (where a.queues is not null))[1]::text[] as queues,
        max(a.concurrency) as concurrency,
    (array_agg(a.labels::text) filter (where a.labels is not null))[1]::text[] as labels,
        sum(a.active_jobs)::int as active_jobs,
    array(select j from unnest(array_agg(a.active_job_ids::text)) t(ids), unnest(ids::uuid[]) j) as active_job_ids,
    (array_agg(a.info order by a.registered_at nulls last))[1] as info
from ojs_router.all_workers() a group by a.worker;
create view ojs.crons as
select a.name, a.expression, a.timezone, a.enabled, a.overlap_policy, a.description, a.job, a.next_run_at,
    a.last_run_at, a.run_count, a.created_at
from ojs_router.all_crons() a;
-- A limit of a queue is shared out. Any other one counts on the node of its key, as in merged_limit().
create view ojs.rate_limits as
select r.key, sum(r.concurrency)::int as concurrency, sum(r.active)::bigint as active, sum(r.rate)::int as rate,
    max(r.rate_period) as rate_period, sum(r.started)::bigint as started, max(r.window_resets_at) as window_resets_at,
    sum(r.throttle)::int as throttle, max(r.throttle_period) as throttle_period,
    min(r.next_allowed_at) as next_allowed_at, max(r.paused_until) as paused_until, sum(r.waiting)::bigint as waiting,
    ojs_router.merged_config(array_agg(r.override order by r.node)) as override, max(r.override_until) as override_until
from (
    select distinct on (a.key, case when a.key like 'queue:%' then a.node end) a.*
    from ojs_router.all_rate_limits() a
    order by a.key, case when a.key like 'queue:%' then a.node end,
        a.node <> (select s.node from ojs_router.slot s where s.slot = ojs.key_slot('limit: ' || a.key)), a.node) r
group by r.key;
