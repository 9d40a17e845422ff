-- info.sql: reading jobs, leases and queues. C++: src/admin/info.cpp.

create function ojs.info(job_id uuid) returns jsonb
language c volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_info';
comment on function ojs.info(uuid) is 'The complete envelope of a job as it stands; changes and locks nothing';

create function ojs.version() returns text
language c immutable parallel safe as 'MODULE_PATHNAME', 'ojs_version';
comment on function ojs.version() is 'The version of the ojs library';

create function ojs_store.now() returns timestamptz
language c volatile parallel restricted as 'MODULE_PATHNAME', 'ojs_now';

-- For waits: seconds of a clock that nobody sets, of which only differences mean anything, and a sleep by that clock.
-- The server's pg_sleep() lasts for an hour longer if the system's clock is set back by an hour.
create function ojs_store.steady_s() returns double precision
language c volatile parallel restricted as 'MODULE_PATHNAME', 'ojs_steady_s';

create function ojs_store.rest(seconds double precision) returns void
language c strict volatile parallel restricted as 'MODULE_PATHNAME', 'ojs_rest';

create function ojs_store.changed(contents_of regclass) returns void
language c strict volatile parallel unsafe as 'MODULE_PATHNAME', 'ojs_changed';

-- Keyed hash of a name that callers choose (src/store/name_hash.cpp).
create function ojs_store.name_hash(name text) returns bigint
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_name_hash';

-- The id of the queue of this name, or the one that it would get.
create function ojs_store.queue_id(name text) returns bigint
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_queue_id';

-- Like the function above, but for a name that has no row; refuses an id that another queue has.
create function ojs_store.new_queue_id(name text) returns bigint
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_new_queue_id';

create function ojs_store.look(job_id uuid) returns ojs.job
language c strict stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_look';

create function ojs_store.leases(
    out job_id uuid, out queue text, out worker text, out lease_id text, out claimed_at timestamptz,
    out lease_expires_at timestamptz, out deliveries int
) returns setof record
language c stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_leases';

create function ojs_store.holders(out worker text, out ids uuid[], out claimed_at timestamptz) returns setof record
language c stable parallel unsafe as 'MODULE_PATHNAME', 'ojs_holders';

-- What never changes comes from the envelope itself, so that a search by id, type or time uses its index.
create view ojs.jobs as
select
    ojs_store.if_allowed(envelope.id, readable) as id, ojs_store.if_allowed(envelope.seq, readable) as seq,
    job.specversion, ojs_store.if_allowed(envelope.type, readable) as type, job.queue, job.state, job.args, job.meta,
    job.priority, job.attempt, job.max_attempts, job.deliveries,
    ojs_store.if_allowed(envelope.created_at, readable) as created_at, job.enqueued_at,
    ojs_store.if_allowed(envelope.scheduled_at, readable) as scheduled_at,
    ojs_store.if_allowed(envelope.expires_at, readable) as expires_at, job.started_at, job.completed_at,
    job.cancelled_at, job.discarded_at, job.next_attempt_at, job.timeout, job.retry, job."unique", job.schema, job.tags,
    job.result, job.error, job.errors, job.worker, job.extra, job.deduplicated
from ojs_store.job envelope,
    lateral (select ojs_store.may_use_queue(envelope.queue, 'read') as readable) rights,
    lateral ojs_store.visible(envelope.id) job
where ojs_store.if_allowed(envelope.id, readable) = envelope.id and job.id is not null;
comment on view ojs.jobs is 'All jobs: the columns of ojs.job, each job as it stands';

create view ojs.leases as
select job_id, queue, worker, lease_id, claimed_at, lease_expires_at, deliveries from ojs_store.leases();
comment on view ojs.leases is 'Who holds which job until when; empty on a standby, where leases do not exist';

create view ojs.queues with (security_barrier) as
select name,
    case when state = 'active' and strpos(name, '@') > 0 then coalesce( -- a tenant's part is paused with its queue
        (select case base.state when 'deleted' then newest.state else base.state end from ojs_store.queue base
            where base.name = split_part(newest.name, '@', 1) order by base.revised_at desc limit 1), state)
        else state end as state, created_at, config
from (
    select distinct on (name) id, name, state, created_at, config
    from ojs_store.queue
    where name <> '_default'
    order by name, revised_at desc
) newest
where state <> 'deleted' and ojs_store.may_use_queue(id, 'read');
comment on view ojs.queues is 'All queues, with their state (active, paused, draining) and configuration';
