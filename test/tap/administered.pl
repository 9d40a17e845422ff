# What an administrator may do to the tables while they are in use: write them anew, reindex them, or add
# indexes.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use PostgreSQL::Test::Cluster;
use Test::More;
use Ojs;

my $node = server('administered', preload => 1);
my $sql = sub { return $node->safe_psql('postgres', shift) };

# The place that a hot row remembers may lie beyond the end of a table that was written anew.
for my $way ('vacuum full ojs_store.job', 'cluster ojs_store.job using job_id') {
    $sql->(q{select from ojs.push_many((select jsonb_agg(jsonb_build_object('type', 'a.b', 'args',
        jsonb_build_array(repeat('x', 400)), 'queue', 'long')) from generate_series(1, 1000)))});
    $sql->(q{select from ojs.push('a.b', queue => 'long')});
    $sql->(q{select ojs.ack(id) from ojs.claim('long', 'w', 1000)});
    $sql->(q{select ojs.purge_queue('long', '{completed}', true)});
    $sql->($way);
    is($sql->(q{select count(ojs.ack(id)) from ojs.claim('long', 'w', 2)}), 1,
        "SM: after $way the last job is claimed and finished");
}

# A session remembers where it has stored a lease. By the time of the ack the row may lie elsewhere, beyond the end of
# the file, or be the lease of another job.
my $holder = $node->background_psql('postgres', on_error_stop => 0);
my $place = sub { return $sql->("select ctid from ojs_store.lease where job_id = '$_[0]'") };
for my $way ('vacuum full ojs_store.lease', 'cluster ojs_store.lease using lease_job') {
    $sql->(q{select count(ojs.push('held.one', queue => 'held')) from generate_series(1, 500)});
    $sql->(q{select from ojs.claim('held', 'other', 499)});
    my $id = $holder->query_safe(q{select id from ojs.claim('held', 'w')});
    $sql->(q{select ojs.ack(job_id) from ojs.leases where worker = 'other'});
    my $before = $place->($id);
    $sql->($way);
    isnt($place->($id), $before, "SM: $way moves a lease");
    is($holder->query_safe("select state from ojs.ack('$id')"), 'completed', 'SM: and its holder still finds it');
}
$sql->(q{select count(ojs.push('held.one', queue => 'held')) from generate_series(1, 20)});
my $mine = $holder->query_safe(q{select id from ojs.claim('held', 'w')});
my $was = $place->($mine);
$sql->("select ojs.nack('$mine', delay => '1 hour')");
$sql->('vacuum ojs_store.lease');
$sql->(q{select from ojs.claim('held', 'other', 19)});
is($sql->("select count(*) from ojs_store.lease where ctid = '$was'"), 1, 'SM: a lease lies where another one was');
$holder->query("select ojs.ack('$mine')");
is($sql->(q{select count(*) from ojs.leases where worker = 'other'}), 19, 'SM: whoever held that one does not end it');
$sql->(q{select ojs.ack(job_id) from ojs.leases});
$holder->quit;

# REINDEX CONCURRENTLY waits for an old snapshot, with its new index filled: what comes then must not be missing there.
my @at_once = ('018f0000-0000-7000-8000-000000000001', '018f0000-0000-7000-8000-000000000002');
my $unique = q{"unique" => '{"keys": ["type"], "on_conflict": "reject"}'};
for my $index ('job_id', 'unique_key_held') {
    my $old = $node->background_psql('postgres');
    my $reindex = $node->background_psql('postgres');
    $old->query_safe('begin isolation level repeatable read; select 1');
    $reindex->query_until(qr/begun/, "\\echo begun\nreindex index concurrently ojs_store.$index;\n\\echo ended\n");
    awaits($node, q{select exists (select from pg_stat_progress_create_index
        where phase = 'waiting for old snapshots')}, "reindexing $index waits for an old snapshot");
    my $id = $sql->($index eq 'job_id' ? "select id from ojs.push('own.id', id => '$at_once[0]', queue => 're')"
        : "select id from ojs.push('only.one', queue => 're', $unique)");
    $old->query_safe('commit');
    $reindex->query_until(qr/ended/, '');
    is($sql->("select ojs.info('$id') ->> 'state'"), 'available',
        "SM: a job that is pushed while $index is being reindexed is found");
    my ($code, $out, $err) = $node->psql('postgres',
        $index eq 'job_id' ? "select from ojs.push('own.id', id => '$id', queue => 're')"
            : "select from ojs.push('only.one', queue => 're', $unique)");
    like($err, qr/a job with the (id|same uniqueness key)/, "UNQ-01: and it is in the way of its like");
    $_->quit for $old, $reindex;
}

# Indexes of others: plain ones, of expressions, of some of the rows, for whatever way rows take into the table.
$sql->($_) for 'create index by_type on ojs_store.job (type)',
    'create index by_argument on ojs_store.job ((args ->> 0))',
    q{create index by_meta on ojs_store.job (type) where priority > 5},
    'create index by_length on ojs_store.lease (length(worker))',
    'create index by_members on ojs_store.unique_key (cardinality(past))',
    'create unique index by_text on ojs_store.finished ((job_id::text))';
$sql->(q{select from ojs.push('i.one', '["here"]', queue => 'i', priority => 9)});
$sql->("select from ojs.push('i.two', '[\"here\"]', queue => 'i', id => '$at_once[1]')");
$sql->(q{select from ojs.push('i.two', '["here"]', queue => 'i',
    "unique" => '{"keys": ["type"], "on_conflict": "replace"}')}) for 1, 2;
$sql->(q{select from ojs.push_many('[{"type": "i.three", "args": ["here"], "queue": "i"},
    {"type": "i.four", "args": ["here"], "queue": "i"}]')});
is($sql->("set enable_seqscan = off; select count(*) from ojs_store.job where $_->[0]"), $_->[1],
    "an index of an administrator holds each row, and no other: $_->[0]")
    for [q{type = 'i.two'}, 3], [q{args ->> 0 = 'here'}, 6], [q{type like 'i.%' and priority > 5}, 1];
$sql->(q{select ojs.extend(id, '1 hour') from ojs.claim('i', 'worker', 5)});
is($sql->(q{set enable_seqscan = off; select count(*) from ojs_store.lease where length(worker) = 6}), 5,
    'an index of leases too');
is($sql->(q{select count(ojs.ack(job_id)) from ojs.leases}), 5, 'SM: and the jobs are finished');
is($sql->(q{set enable_seqscan = off; select count(*) from ojs_store.finished d
    join ojs_store.job j on d.job_id::text = j.id::text
    where j.queue = (select id from ojs_store.queue where name = 'i')}), 6, 'with theirs');

# A transaction that configures very many queues takes a bounded number of locks, and says so where others block it.
my $settings = q{select count(*) from pg_locks where locktype = 'advisory' and classid = 'ojs_store.queue'::regclass};
my $many = q{select count(*) from generate_series(1, 1000) n, ojs.create_queue('many-' || n)};
my $other = $node->background_psql('postgres', on_error_stop => 1);
$other->query_safe(q{begin; select from ojs.create_queue('other')});
my ($code, $out, $err) = $node->psql('postgres', $many);
like($err, qr/other transactions are changing settings.*\n(DETAIL.*\n)?HINT:.*256/,
    'more queues than locks are refused while others configure theirs');
is($sql->(q{select count(*) from ojs.queues where name like 'many-%'}), 0, 'and nothing has changed');
$other->query_safe('commit');
$other->query_safe("begin; $many");
cmp_ok($sql->($settings), '<', 300, 'a thousand queues are made with a few hundred locks');
$other->query_safe('commit');
is($sql->(q{select count(*) from ojs.queues where name like 'many-%'}), 1000, 'and are there');
$other->quit;

done_testing();
