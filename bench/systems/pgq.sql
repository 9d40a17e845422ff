-- PgQ, log-shaped: one consumer reads whole batches between two ticks. There is no claim or ack of a single job.
-- A tick after every push of a batch makes a batch as large as that.

-- @setup
create extension pgq;
select pgq.create_queue('bench');
select pgq.register_consumer('bench', 'c');
select pgq.set_queue_config('bench', 'ticker_max_count', '1');
select pgq.ticker('bench');

-- @push
-- $ payload
select pgq.insert_event('bench', 'email.send', $1)

-- @push_many
-- $ pgarray
select count(pgq.insert_event('bench', 'email.send', d)) from unnest($1::text[]) d

-- @tick
select pgq.ticker('bench')

-- @open
select pgq.next_batch('bench', 'c')

-- @claim_many
-- $ batch
select ev_id, ev_data, ev_type from pgq.get_batch_events($1)

-- @ack_many
-- $ batch
select pgq.finish_batch($1)
