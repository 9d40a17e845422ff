# A publication of all tables stops nothing, and a logical subscriber ends up with the same logged rows. The hot set is
# unlogged, so no publication has it.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;

my $publisher = server('publisher', preload => 1, streaming => 'logical',
    conf => "wal_level = logical\nojs.worker = off\n");
my $subscriber = server('subscriber', streaming => 'logical');

my $logged = q{from pg_class where relnamespace = 'ojs_store'::regnamespace and relkind = 'r' and relpersistence = 'p'};
my @tables = split /\n/, $publisher->safe_psql('postgres', "select oid::regclass $logged order by 1");
my $rows_sql = join(' union all ', map { "select '$_ ' || t::text from $_ t" } @tables);
my $all_rows = "select string_agg(row, e'\\n' order by row) from ($rows_sql) rows(row)";

# What CREATE EXTENSION has filled comes with the first copy.
$subscriber->safe_psql('postgres', 'truncate ' . join(', ', @tables));
$publisher->safe_psql('postgres', 'create publication everything for all tables');
$publisher->safe_psql('postgres', q{select ojs.push('test.job', queue => 'before') from generate_series(1, 3)});
$subscriber->safe_psql('postgres',
    "create subscription everything connection '" . $publisher->connstr . " dbname=postgres' publication everything");
$subscriber->wait_for_subscription_sync($publisher, 'everything');

$publisher->safe_psql('postgres', q{select ojs.push('test.job', queue => 'q') from generate_series(1, 5)});
my @steps = (
    'configure_queue' => q{select ojs.configure_queue('q', '{"max_size": 100, "lease_log": true}')},
    'pause_queue' => q{select ojs.pause_queue('q')},
    'resume_queue' => q{select ojs.resume_queue('q')},
    'a checkpoint' => q{select ojs.checkpoint(id, '[1]') from ojs.claim('q', 'w', max => 2, lease => '1 h')},
    'progress' => q{select ojs.progress(job_id, 0.5) from ojs.leases},
    'progress again' => q{select ojs.progress(job_id, 0.6) from ojs.leases},
    'an ack' => q{select ojs.ack(job_id) from (select * from ojs.leases limit 1) held},
    'a failure' => q{select ojs.fail(job_id, '{"code": "DEAD_LETTER", "type": "E", "message": "m"}') from ojs.leases},
    'a unique job' => q{select ojs.push('test.job', queue => 'u', "unique" => '{"keys": ["type"]}')},
    'a child' => q{select ojs.push('test.job', queue => 'child', options =>
        jsonb_build_object('parent_id', id)) from ojs.jobs limit 1},
    'a child that is deleted' => q{select ojs.cancel(id), ojs.delete_job(id) from ojs.jobs where queue = 'child'},
    'another child' => q{select ojs.push('test.job', queue => 'child', options =>
        jsonb_build_object('parent_id', id)) from ojs.jobs limit 1},
    'the same again' => q{select ojs.push('test.job', queue => 'u',
        "unique" => '{"keys": ["type"], "on_conflict": "replace"}')},
    'a deleted job' => q{select ojs.delete_job(id) from ojs.dead_letters},
    'a rate limit' => q{select ojs.set_rate_limit('k', '{"concurrency": 1}')},
    'no rate limit' => q{select ojs.set_rate_limit('k', null)},
    'purge_queue' => q{select ojs.purge_queue('before', confirm => true)},
    'drop_queue' => q{select ojs.drop_queue('before')},
    'a beat' => q{select ojs.beat('w')},
    'a beat that is quiet' => q{select ojs.beat('w', state => 'quiet')},
    'a cron entry' => q{select ojs.schedule('c', '@hourly', '{"type": "test.job"}')},
    'no cron entry' => q{select ojs.unschedule('c')},
    'maintenance' => q{select ojs.set_maintenance(true)},
    'no maintenance' => q{select ojs.set_maintenance(false)},
    'notices of events' => q{select ojs.notify_events(true)},
    'no notices of events' => q{select ojs.notify_events(false)},
    'a tick' => q{select ojs.tick()},
    'retention' => q{set ojs.clock_offset = '40d'; select ojs.tick(); select ojs.tick()},
);
while (my ($step, $sql) = splice @steps, 0, 2) {
    my ($status, undef, $error) = $publisher->psql('postgres', $sql, on_error_stop => 1);
    is($status, 0, "under a publication of all tables: $step") or diag $error;
}

isnt($publisher->safe_psql('postgres', $all_rows), '', 'the publisher has rows');
$publisher->wait_for_catchup('everything');
is($subscriber->safe_psql('postgres', $all_rows), $publisher->safe_psql('postgres', $all_rows),
    'the subscriber has the same logged rows');

# Where the replication has ended, the subscriber goes on as after a restore.
$publisher->safe_psql('postgres', q{select ojs.push('test.job', queue => 'goes.on')});
$publisher->wait_for_catchup('everything');
$subscriber->safe_psql('postgres', 'drop subscription everything');
is($subscriber->safe_psql('postgres', "select count(*) from ojs.claim('goes.on', 'w')"), 1,
    'afterwards its jobs can be claimed there');

$subscriber->stop;
$publisher->stop;
done_testing();
