-- ojs with a thousand queues: each call takes one of them by chance. What it costs beside `ojs`, which has one.

-- @setup
create extension ojs;

-- @push
-- $ payload [%s]
select (ojs.push(type => 'email.send', args => $1::jsonb, queue => 'bench-' || trunc(random() * 1000))).id

-- @push_many
-- $ pgarray
select count(ojs.push(type => 'email.send', args => jsonb_build_array(payload),
    queue => 'bench-' || trunc(random() * 1000))) from unnest($1::jsonb[]) payload

-- @claim
-- $ worker
select id, args, type, lease_id from ojs.claim('bench-' || trunc(random() * 1000), $1, 1, missing_ok => true)

-- @ack
-- $ id
-- $ lease
select (ojs.ack($1, lease_id => $2)).state
