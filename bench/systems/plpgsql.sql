-- What a queue like ojs costs in PL/pgSQL alone, at least: push, claim, ack and uniqueness on one table, with two
-- checks of what comes. No retries, events, limits, rights, counters or wake-ups. docs/design.md says why it is no
-- edition of ojs.

-- @setup
create table queue (
    id int generated always as identity primary key,
    name text unique not null,
    paused bool not null default false
);
create table job (
    id uuid primary key,
    queue int not null references queue,
    state smallint not null,
    priority smallint not null,
    attempt smallint not null default 0,
    max_attempts smallint not null default 3,
    type text not null,
    scheduled_at timestamptz,
    created_at timestamptz not null default clock_timestamp(),
    started_at timestamptz,
    completed_at timestamptz,
    lease_id uuid,
    lease_until timestamptz,
    worker text,
    fingerprint bytea,
    args jsonb not null,
    meta jsonb,
    errors jsonb,
    result jsonb
) with (fillfactor = 70);
create index job_ready on job (queue, priority desc, id) where state = 0;
create index job_lease on job (lease_until) where state = 1;
create index job_later on job (scheduled_at) where state = 2;
create unique index job_unique on job (queue, fingerprint) where fingerprint is not null and state < 3;

create function uuid7() returns uuid language sql volatile as $$
    select encode(set_byte(set_byte(overlay(random placing
        substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6),
        6, 112 + (get_byte(random, 6) & 15)), 8, 128 + (get_byte(random, 8) & 63)), 'hex')::uuid
    from uuid_send(gen_random_uuid()) random
$$;

create function push(type text, args jsonb default '[]', queue text default 'default', priority int default 0,
    scheduled_at timestamptz default null, meta jsonb default null, unique_key text default null)
returns job language plpgsql as $$
#variable_conflict use_column
declare
    queue_id int;
    made job;
begin
    if jsonb_typeof(push.args) <> 'array' then
        raise exception 'args must be an array' using errcode = '22023';
    end if;
    if push.type !~ '^[a-z0-9_]+([.-][a-z0-9_]+)*$' then
        raise exception 'bad type' using errcode = '22023';
    end if;
    select id into queue_id from queue where name = push.queue;
    if queue_id is null then
        insert into queue (name) values (push.queue) on conflict (name) do nothing;
        select id into queue_id from queue where name = push.queue;
    end if;
    insert into job (id, queue, state, priority, type, scheduled_at, args, meta, fingerprint)
        values (uuid7(), queue_id, case when push.scheduled_at > now() then 2 else 0 end, push.priority, push.type,
            push.scheduled_at, push.args, push.meta,
            case when unique_key is not null then sha256(convert_to(unique_key, 'UTF8')) end)
        on conflict (queue, fingerprint) where fingerprint is not null and state < 3 do nothing
        returning * into made;
    if made.id is null then
        select * into made from job
            where queue = queue_id and fingerprint = sha256(convert_to(unique_key, 'UTF8')) and state < 3;
    end if;
    return made;
end $$;

create function claim(queue text, worker text, max int default 1, lease interval default '30 s')
returns setof job language plpgsql as $$
begin
    return query
        update job j set state = 1, attempt = attempt + 1, started_at = clock_timestamp(), lease_id = gen_random_uuid(),
            lease_until = clock_timestamp() + lease, worker = claim.worker
        where id = any (array(
            select r.id from job r
            where r.queue = (select q.id from queue q where q.name = claim.queue and not q.paused) and r.state = 0
            order by r.priority desc, r.id limit max for update skip locked))
        returning j.*;
end $$;

create function ack(id uuid, lease_id uuid default null, result jsonb default null)
returns job language plpgsql as $$
#variable_conflict use_column
declare
    done job;
begin
    update job set state = 3, completed_at = clock_timestamp(), result = ack.result, lease_until = null
        where id = ack.id and state = 1 and (ack.lease_id is null or lease_id = ack.lease_id)
        returning * into done;
    if done.id is null then
        raise exception 'the job is not active' using errcode = '55000';
    end if;
    return done;
end $$;

create function ack_many(ids uuid[]) returns bigint language sql as $$
    with done as (
        update job set state = 3, completed_at = clock_timestamp(), lease_until = null
        where id = any (ids) and state = 1 returning 1)
    select count(*) from done
$$;

-- @push
-- $ payload [%s]
select id from push(type => 'email.send', args => $1::jsonb, queue => 'bench')

-- @push_many
-- $ pgarray
select count(*) from unnest($1::jsonb[]) p (args),
    lateral push(type => 'email.send', args => jsonb_build_array(p.args), queue => 'bench')

-- @claim
-- $ worker
select id, args, type, lease_id from claim('bench', $1, 1)

-- @claim_many
-- $ worker
-- $ n
select id, args, type, lease_id from claim('bench', $1, $2)

-- @ack
-- $ id
-- $ lease
select state from ack($1, lease_id => $2)

-- @ack_many
-- $ ids
select ack_many($1::uuid[])
