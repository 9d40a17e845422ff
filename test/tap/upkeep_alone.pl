# Duties of upkeep stand alone: one that fails or meets a lock stops no other, and health says so. The worker ends when
# asked.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = server('alone', preload => 1, conf => "ojs.tick_interval = '20ms'\nmax_prepared_transactions = 5\n");
my $pid = worker_pid($node);

# A job falls due and is found, whatever else does not work.
sub promotes {
    my ($name) = @_;
    my $id = pushed($node, 'due', "delay => '100 ms'");
    awaits($node, "select exists (select from ojs_store.ready where job_id = '$id')", $name);
}

# One duty fails.
my $broken = q{alter function ojs_store.prune_records(int, boolean) rename to pruned_no_more};
$node->safe_psql('postgres', $broken);
awaits($node, q{select ojs.health() -> 'upkeep' -> 'failing' -> 0 ->> 'duty' = 'events'},
    'a duty that fails is shown by health');
is(health($node, 'status'), 'degraded', 'health is degraded then');
is(health($node, 'upkeep,failing,0,sqlstate'), '42883', 'and tells the error');
like(health($node, 'upkeep,failing,0,message'), qr/prune_records/, 'in words');
awaits($node, q{select (ojs.health() #>> '{upkeep,failing,0,failures}')::int > 1}, 'it is tried again, and counted');
awaits($node, q{select ojs.metrics() ~ 'ojs_upkeep_failures_total\{duty="events"\} [1-9]'}, 'metrics count it');
like($node->safe_psql('postgres', 'select ojs.metrics()'),
    qr/ojs_upkeep_last_success_timestamp_seconds\{duty="promote"\} \d+/, 'and tell when others succeeded');
promotes('other duties go on');
is(() = slurp_file($node->logfile) =~ /WARNING:.*upkeep duty "events" failed/g, 1, 'it is reported once');
$node->safe_psql('postgres', 'alter function ojs_store.pruned_no_more(int, boolean) rename to prune_records');
awaits($node, q{select ojs.health() ->> 'status' = 'ok'}, 'health is ok when it has succeeded');
is(worker_pid($node), $pid, 'the worker went on all the time');

# A lock is held on what only some duties need.
my $locker = $node->background_psql('postgres', on_error_stop => 1);
$locker->query_safe('begin; lock table ojs_store.event_notify_cursor, ojs_store.stored_event, ojs_store.idempotency
    in access exclusive mode');
awaits($node, q{select exists (select from jsonb_array_elements(ojs.health() #> '{upkeep,failing}') f
    where f ->> 'duty' = 'events' and f ->> 'sqlstate' = '55P03')},
    'a duty gives up waiting for a lock');
promotes('others do not wait for it');
$locker->query_safe('commit');
awaits($node, q{select ojs.health() ->> 'status' = 'ok'}, 'and it succeeds once the lock is gone');

# Nor does health wait for a table of webhooks.
$locker->query_safe('begin; lock table ojs_store.webhook_delivery in access exclusive mode');
is($node->safe_psql('postgres', q{set lock_timeout = '10s'; select ojs.health() -> 'webhooks'}), 'null',
    'health says what it can while somebody has locked deliveries of webhooks');
$locker->query_safe('commit');
is(health($node, 'webhooks,pending'), '0', 'and afterwards all');

# An administrator wants to be told of events, in a transaction that stays open.
$node->safe_psql('postgres', 'select ojs.notify_events()');
$locker->query_safe('begin; select ojs.notify_events()');
my $told = $node->safe_psql('postgres', 'select cursor from ojs_store.event_notify_cursor');
pushed($node, 'noticed');
awaits($node, "select cursor <> '$told' from ojs_store.event_notify_cursor",
    'ojs.notify_events() in an open transaction holds up no tick');
$locker->query_safe('commit');
$node->safe_psql('postgres', 'select ojs.notify_events(false)');

# Asked to end, the worker does, while it waits for a lock too; what it had begun is rolled back.
my $id = pushed($node, 'held');
$locker->query_safe('begin; lock table ojs_store.job_history in access exclusive mode');
$node->safe_psql('postgres', q{select count(*) from ojs.claim('held', 'w', lease => '100 ms')});
awaits($node, "select count(*) = 1 from pg_locks where pid = $pid and not granted",
    'GS-01: the worker waits in the middle of a pass');
$node->safe_psql('postgres', "select pg_terminate_backend($pid)");
awaits($node, "select not exists (select from pg_stat_activity where pid = $pid)",
    'GS-01: asked to end, it does, though the lock is still held');
$locker->query_safe('commit');
awaits($node, "select state = 'available' from ojs.jobs where id = '$id'",
    'GS-01: the lapse is found by the next worker');
is($node->safe_psql('postgres', "select count(*) from ojs_store.job_history where job_id = '$id' and kind = 3"), '1',
    'GS-01: once');

# DROP DATABASE … WITH (FORCE) in the middle of ticks.
$node->safe_psql('postgres', 'create database dropped');
$node->safe_psql('dropped', 'create extension ojs');
worker_pid($node, 'dropped');
is($node->psql('postgres', 'drop database dropped with (force)'), 0,
    'a database with a worker can be dropped by force');

# A fast shutdown while a prepared transaction holds a lock that outlives it.
$node->safe_psql('postgres',
    q{begin; lock table ojs_store.lease in access exclusive mode; prepare transaction 'stays'});
awaits($node, q{select exists (select from jsonb_array_elements(ojs.health() #> '{upkeep,failing}') f
    where f ->> 'duty' = 'reap')}, 'reaping meets the lock');
$locker->quit;
$node->stop('fast');
pass('a fast shutdown does not wait for the lock');
$node->start;
$node->safe_psql('postgres', q{rollback prepared 'stays'});
promotes('and upkeep goes on afterwards');
$node->stop;

# A session that has opened no table yet prunes dead letters, and nothing else. All have died at the same time.
$node = server('fresh', conf => "autovacuum = off\n");
$node->safe_psql('postgres',
    q{select ojs.push_many((select jsonb_agg('{"type": "t", "args": [], "queue": "dead"}'::jsonb)
        from generate_series(1, 1000))) is null from generate_series(1, 11) r \g /dev/null
    select count(*) from generate_series(1, 11) r, lateral (select ojs.fail(id,
        '{"type": "t", "message": "m", "code": "DEAD_LETTER"}') from ojs.claim('dead', 'w' || r, 1000)) f \g /dev/null
    update ojs_store.dead_letter set died_at = now()});
is($node->safe_psql('postgres', q{select ojs.tick(700) ->> 'jobs_removed'}), '700',
    'a fresh session prunes dead letters beyond their number, at most its budget');
is($node->safe_psql('postgres', q{select ojs.tick() ->> 'jobs_removed'}), '300', 'as many as there are too many');
is($node->safe_psql('postgres', q{select count(*) from ojs_store.job}), '10000',
    'a queue keeps 10,000 of its own accord');
is($node->safe_psql('postgres', q{set ojs.clock_offset = '200d'; select ojs.tick(20000) ->> 'jobs_removed'}), '10000',
    'and those that are too old go');
is($node->safe_psql('postgres', q{select count(*) from ojs_store.job}), '0', 'with all that belongs to them');

# Names of dropped queues go although no job has ever finished.
$node->safe_psql('postgres', 'create database young');
is($node->safe_psql('young', q{create extension ojs}), '', 'a database where nothing has finished');
$node->safe_psql('young', q{select from ojs.create_queue('brief'); select ojs.drop_queue('brief')});
$node->safe_psql('young', q{set ojs.clock_offset = '200d'; select ojs.tick()});
is($node->safe_psql('young', q{select count(*) from ojs_store.queue where name = 'brief'}), '0',
    'forgets a dropped queue (QC-04)');

# Somebody is at what goes with a finished job: retention leaves that job, without waiting, and takes the others.
my $kept = $node->safe_psql('postgres', q{
    select id from ojs.push('t', queue => 'kept') \gset
    select count(*) as n from ojs.claim('kept', 'w'), ojs.checkpoint(id, '{}') \gset
    select (ojs.fail(:'id', '{"type": "t", "message": "m", "retryable": false}')).id \gset
    select count(*) as n from ojs.push('t', queue => 'kept') \gset
    select count(*) as n from (select ojs.ack(id) from ojs.claim('kept', 'w')) a \gset
    select :'id'});
for my $at (q{select from ojs_store.checkpoint for update}, "select from ojs_store.job where id = '$kept' for update") {
    my $other = $node->background_psql('postgres', on_error_stop => 1);
    $other->query_safe("begin; $at");
    is($node->safe_psql('postgres',
        q{begin; set local ojs.clock_offset = '300d'; select t ->> 'jobs_removed' || (t ->> 'failed') from ojs.tick() t;
        rollback}), '1[]',
        "retention passes over a job that somebody is at ($at)");
    $other->quit;
}
is($node->safe_psql('postgres', q{set ojs.clock_offset = '300d'; select ojs.tick() ->> 'jobs_removed'}), '2',
    'and takes it when nobody is');
$node->stop;

done_testing();
