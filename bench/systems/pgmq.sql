-- pgmq, by its own functions. A message that was read stays in its table until its reader deletes it.

-- @setup
create extension pgmq;
select pgmq.create('bench');

-- @push
-- $ payload
select * from pgmq.send('bench', $1::jsonb)

-- @push_many
-- $ pgarray
select count(*) from pgmq.send_batch('bench', $1::jsonb[])

-- @claim
select msg_id, message from pgmq.read('bench', 30, 1)

-- @claim_many
-- $ n
select msg_id, message from pgmq.read('bench', 30, $1)

-- @ack
-- $ id
select pgmq.delete('bench', $1::bigint)

-- @ack_many
-- $ ids
select pgmq.delete('bench', $1::bigint[])
