-- ojs, through its public functions.

-- @setup
create extension ojs;

-- @push
-- $ payload [%s]
select (ojs.push(type => 'email.send', args => $1::jsonb, queue => 'bench')).id

-- @push_full
-- $ payload [%s]
select * from ojs.push(type => 'email.send', args => $1::jsonb, queue => 'bench')

-- @push_many
-- $ array {"type":"email.send","queue":"bench","args":[%s]}
select count(*) from ojs.push_many($1::jsonb)

-- @claim
-- $ worker
select id, args, type, lease_id from ojs.claim('bench', $1, 1)

-- @claim_many
-- $ worker
-- $ n
select id, args, type, lease_id from ojs.claim('bench', $1, $2)

-- @ack
-- $ id
-- $ lease
select (ojs.ack($1, lease_id => $2)).state

-- @ack_many
-- $ worker
-- $ ids
select done from ojs.ack_many($1, $2::uuid[])

-- @ack_claim
-- $ worker
-- $ ids
-- $ n
select id, args, type, lease_id from ojs.ack_and_claim($1, 'bench', $2::uuid[], max => $3)

-- @listen
listen "ojs.bench"

-- @claim_wait
-- $ worker
select id, args, type, lease_id from ojs.claim('bench', $1, 1, wait => '5 s')

-- @wait_idle
-- $ worker
select id from ojs.claim('idle', $1, 1, wait => '1 h', missing_ok => true)
