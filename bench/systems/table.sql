-- A hand-rolled jobs table, as lean as one can be: a bigint key, a partial index on the rows that are ready, claims by
-- FOR UPDATE SKIP LOCKED, an ack that deletes. No priority, no schedule, no retries, no lease: less than
-- any queue does.

-- @setup
create table job (
    id bigint generated always as identity primary key,
    state smallint not null default 0,
    created_at timestamptz not null default now(),
    claimed_at timestamptz,
    args jsonb not null
);
create index job_ready on job (id) where state = 0;

-- @push
-- $ payload
insert into job (args) values ($1) returning id

-- @push_many
-- $ pgarray
insert into job (args) select unnest($1::jsonb[])

-- @claim
update job set state = 1, claimed_at = now()
where id = (select id from job where state = 0 order by id limit 1 for update skip locked)
returning id, args

-- @claim_many
-- $ n
update job set state = 1, claimed_at = now()
where id = any (array(select id from job where state = 0 order by id limit $1 for update skip locked))
returning id, args

-- @ack
-- $ id
delete from job where id = $1

-- @ack_many
-- $ ids
delete from job where id = any ($1::bigint[])

-- What a worker could do at best: finish what it holds and take the next in one statement and one commit.
-- @ack_claim
-- $ ids
-- $ n
with finished as (delete from job where id = any ($1::bigint[]))
update job set state = 1, claimed_at = now()
where id = any (array(select id from job where state = 0 order by id limit $2 for update skip locked))
returning id, args

-- @push_notify
-- $ payload
with j as (insert into job (args) values ($1) returning id) select id, pg_notify('job', '') from j

-- @listen
listen job
