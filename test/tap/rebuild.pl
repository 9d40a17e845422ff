# What a rebuild makes of each kind of event, under many sessions at once, and across DROP and CREATE EXTENSION.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = server('rebuild', conf => "max_connections = 60\n");

# Rows that come by SQL, as in a restore: the session that brings them, and others, find the hot set lost.
my $other = $node->background_psql('postgres', on_error_stop => 0);
$other->query_safe("select from ojs.push('test.job', queue => 'warm')");
my %job = map { $_ => pushed($node, $_) } qw(once moved ttl plain revived);
my $event = 'insert into ojs_store.job_history
    (job_id, at, due_at, kind, attempt, deliveries, started_at, data) values';
$node->safe_psql('postgres', "update ojs_store.job set flags = flags | 2 where id = '$job{once}'");
$node->safe_psql('postgres',
    "update ojs_store.job set flags = flags | 4, options = '{\"enqueue_ttl\": 3600}' where id = '$job{ttl}'");
$node->safe_psql('postgres', "$event ('$job{once}', now(), null, 7, 1, 1, now(), null)");
$node->safe_psql('postgres', "$event ('$job{moved}', now(), null, 5, 0, 0, null, jsonb_build_object('priority', 7))");
$node->safe_psql('postgres',
    "$event ('$job{revived}', now() - interval '1 s', null, 1, 1, 1, now(), '{}'),
        ('$job{revived}', now(), now() + interval '1 hour', 6, 0, 1, null, '{}')");
is($node->safe_psql('postgres', 'select ojs.ready()'), 't', 'PGX-13: rows that came by SQL are taken in');
is(health($node, 'hot_set,last_rebuild,cause'), 'restore', 'OBS-01: health says why');
is($node->safe_psql('postgres', "select state || ' ' || (error ->> 'type') from ojs.jobs where id = '$job{once}'"),
    'discarded worker_death',
    'DLV-01: a job that may run once and had begun is not handed out again');
is($node->safe_psql('postgres', "select npriority from ojs_store.ready where job_id = '$job{moved}'"), -7,
    'a changed priority is kept');
is($node->safe_psql('postgres',
    "select extract(epoch from due_at - (select created_at from ojs_store.job where id = job_id))::int
        from ojs_store.delayed where job_id = '$job{ttl}' and kind = 5"),
    3600, 'TMO-04: the reminder of a time to live is back');
is($node->safe_psql('postgres',
    "select kind || ' ' || attempt || ' ' || deliveries || ' ' || flags from ojs_store.delayed
        where job_id = '$job{revived}'"), '1 0 1 32',
    'SM: a revived job waits for its time');
is($node->safe_psql('postgres', "select count(*) from ojs_store.ready where job_id = '$job{plain}'"), 1,
    'what stood in its place stands there once');
is($other->query_safe("select queue from ojs.claim('plain', 'w')"), 'plain', 'a session from before goes on');

# Inside the transaction that brought the rows.
is($node->safe_psql('postgres', q{
    begin;
    insert into ojs_store.job (id, seq, queue, created_at, flags, max_attempts, priority, type, args)
    select '018f6a10-0000-7000-8000-000000000001', 999999, queue, now(), 0, 3, 0, 'test.job', '[]'
        from ojs_store.job limit 1;
    select state from ojs.push('test.job', queue => 'same');
    select count(*) from ojs_store.ready where job_id = '018f6a10-0000-7000-8000-000000000001';
    rollback}), "available\n1", 'PGX-13: and in the transaction that brings them');
is($node->safe_psql('postgres', 'select ojs.ready()'), 't', 'PGX-13: its rollback leaves the hot set status');

# A router asks which keys are held, perhaps before anybody else has called anything.
$node->safe_psql('postgres',
    q{select from ojs.push_job('{"type": "test.job", "args": [], "queue": "lines", "ordering_key": "k"}')});
my $held_slots = $node->safe_psql('postgres', 'select count(*) from ojs.held_slots()');
cmp_ok($held_slots, '>', 0, 'R-88: a key of order is held');
$other->quit;
$node->stop('immediate');
$node->start;
is($node->safe_psql('postgres', 'select count(*) from ojs.held_slots()'), $held_slots,
    'R-88: no key seems free after a crash');

# Many sessions at once after a crash: one rebuild, no job twice.
$node->safe_psql('postgres', "select count(ojs.push('test.job', queue => 'many')) from generate_series(1, 5000)");
$node->stop('immediate');
$node->start;
$node->pgbench('--client=40 --transactions=20 --jobs=2 --no-vacuum', 0, [qr{processed: 800/800}], [qr/^$/],
    'SM: forty sessions push and claim at once after a crash',
    { '006_many' => "select from ojs.push('test.job', queue => 'many');\n"
        . "select from ojs.claim('many', 'w', max => 3);\n" });
is($node->safe_psql('postgres',
    'select count(*) - count(distinct job_id) from (select job_id from ojs_store.ready
        union all select job_id from ojs_store.lease) hot'), 0,
    'SM: no job is in two places');
is($node->safe_psql('postgres', "set client_min_messages = error; select ojs_store.reconcile('0')"), 0,
    'SM: and none in no place');
is(scalar(() = slurp_file($node->logfile) =~ /ojs has rebuilt its hot set: 50\d\d jobs/g), 1,
    'SM: there was one rebuild');
ok(slurp_file($node->logfile) !~ /in the transaction of a caller/, 'SM: by a process of its own');

# Saved plans of a session live through DROP and CREATE EXTENSION.
my $session = $node->background_psql('postgres', on_error_stop => 0);
for my $round (1 .. 3) {
    is($session->query_safe("select ojs.health() ->> 'status'"), 'ok', "OBS-01: health, round $round");
    is($session->query_safe("select ojs_store.reconcile('0')"), 0, "reconcile, round $round");
    $node->safe_psql('postgres', 'drop extension ojs cascade; create extension ojs');
}
$session->quit;

# Created, used and rolled back in one transaction.
is($node->safe_psql('postgres', q{
    drop extension ojs cascade;
    begin;
    create extension ojs;
    select state from ojs.push('test.job');
    select queue from ojs.claim('default', 'w');
    rollback;
    create extension ojs;
    select state from ojs.push('test.job')}), "available\ndefault\navailable",
        'PGX-02: use in the transaction that creates the extension');
$node->stop;

# Through a snapshot from before a rebuild nothing in the hot set is to be seen: then the logged tables say where a job
# is, also in a session that has seen the rebuild by a newer one. (TRUNCATE empties a table for old snapshots too, as a
# crash does.)
$node = server('snapshots');
my $later = pushed($node, 'later', q{delay => '1 hour'});
my $old = $node->background_psql('postgres', on_error_stop => 0);
$old->query_safe('begin isolation level repeatable read; select 1');
$node->safe_psql('postgres', 'truncate ojs_store.hot_set_state, ojs_store.ready, ojs_store.lease, ojs_store.delayed');
pushed($node, 'later');
$old->query_safe("do \$\$ begin perform ojs.ack('$later'); exception when others then null; end \$\$");
is($old->query_safe("select state from ojs.jobs where id = '$later'"), 'scheduled',
    'STO: an old snapshot does not take an unseen hot set for an empty one');
$old->quit;
$node->stop;

# Where no process can be had, the caller does it.
$node = server('alone', conf => "max_worker_processes = 0\nmax_parallel_workers = 0\n");
$node->safe_psql('postgres', "select from ojs.push('test.job', queue => 'alone')");
$node->stop('immediate');
$node->start;
is($node->safe_psql('postgres', "select queue from ojs.claim('alone', 'w')"), 'alone',
    'SM: without a free process the hot set is rebuilt in place');
ok(slurp_file($node->logfile) =~ /in the transaction of a caller/, 'SM: and the log says so');

# What was prepared before the rebuild, and ended before anybody looked, is not left in no place.
$node->safe_psql('postgres', "begin; select from ojs.push('test.job', queue => 'doubt'); prepare transaction 'p'");
$node->stop('immediate');
$node->start;
$node->safe_psql('postgres', "select from ojs.claim('alone', 'w')");
$node->safe_psql('postgres', "commit prepared 'p'");
$node->safe_psql('postgres', 'select ojs.tick()');
is($node->safe_psql('postgres', "select queue from ojs.claim('doubt', 'w')"), 'doubt',
    'STO: a push that was prepared before a crash is found by the first tick after its commit');
my ($code, $out, $err) = $node->psql('postgres', 'select ojs.start_worker()');
like($err, qr/no background process is free/, 'PGX-04: start_worker says that there is none');
$node->stop;

done_testing();
