-- The least that a queue of the design of ojs would write (floor.c): no queue, but a bound.

-- @setup
create table job (
    id uuid not null,
    queue bigint not null,
    created_at timestamptz not null,
    flags int not null,
    type text not null,
    args jsonb not null
);
create unique index job_id on job (id);
create unlogged table ready (id uuid not null, queue bigint not null, job_tid tid not null);
create unlogged table lease (
    id uuid not null,
    deadline timestamptz not null,
    token bigint not null,
    queue bigint not null,
    job_tid tid not null,
    worker text not null
);
create unique index lease_job on lease (id);
create index lease_deadline on lease (deadline);
create table finished (
    job_id uuid not null,
    finished_at timestamptz not null,
    queue bigint not null,
    attempt int not null,
    started_at timestamptz,
    worker text
);
create unique index finished_job on finished (job_id);
create sequence made;
create sequence taken cache 1000;
create function floor_claim(max int, out id uuid, out args jsonb, out type text, out lease_id uuid)
returns setof record language c as 'floor';
create function floor_ack() returns int language c as 'floor';

-- @push_many
-- $ pgarray
with j as (insert into job
    select lpad(to_hex(nextval('made')), 32, '0')::uuid, 1, now(), 0, 'email.send', unnest($1::jsonb[])
    returning id, queue, ctid)
insert into ready table j

-- @claim
-- $ n
select id, args, type, lease_id from floor_claim($1)

-- @claim_many
-- $ n
select id, args, type, lease_id from floor_claim($1)

-- @ack
select floor_ack()

-- @ack_many
select floor_ack()
