# copy.pl: a copy of a production database stays silent (docs/how-to/operating.md, "A copy of production"). PGX-13.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = server('copy', preload => 1, conf => "fsync = off\n");
$node->safe_psql('postgres', 'create database app; create database staging; create database twin_of');
$node->safe_psql('app', q{
    create extension ojs;
    select from ojs.schedule('mail', '@every 1s', '{"type": "mail.send", "queue": "mail"}',
        '{"overlap_policy": "allow"}');
    select from ojs.create_webhook('{"url": "https://hooks.example/ojs", "events": ["job.completed"]}');
    select from ojs.push('order.ship', queue => 'orders', delay => '1 second')});

# Cron has run twice more in a database that runs, so there was time enough for it elsewhere.
my $twice_more = sub {
    my $runs = $node->safe_psql('app', q{select run_count from ojs.crons});
    awaits($node, "select run_count > $runs + 1 from ojs.crons", 'cron runs in the original', 'app');
};
my $jobs = q{select count(*) || ' ' || (select count(*) from ojs.jobs where queue = 'orders' and state = 'scheduled')
    from ojs.jobs where queue = 'mail'};

# By a dump: into a database that is in maintenance already.
my $dump = $node->basedir . '/dump';
$node->command_ok(['pg_dump', '-Fc', '-f', $dump, '-d', $node->connstr('app')], 'the original is dumped');
$node->safe_psql('staging', q{create extension ojs; select ojs.set_maintenance(true, 'a copy')});
$node->command_ok(['pg_restore', '--exit-on-error', '-d', $node->connstr('staging'), $dump], 'the dump is restored');
my $pushed = $node->safe_psql('staging', $jobs);
$twice_more->();
is($node->safe_psql('staging', $jobs), $pushed, 'a dump restored in maintenance runs no cron entry PGX-13');
is($node->safe_psql('staging', q{select count(*) from ojs.claim('orders', 'w')}), 0, 'and hands out no job PGX-13');

# What would act is removed, and then the copy is a database like any other.
$node->safe_psql('staging', q{select ojs.unschedule(name) from ojs.crons; select ojs.drop_webhook(id) from ojs.webhooks;
    select ojs.purge_queue(name, confirm => true) from ojs.queues;
    select ojs.set_maintenance(false)});
is($node->safe_psql('staging', q{select count(*) from ojs.webhooks}), 0, 'the webhooks and their secrets are gone');
$node->safe_psql('staging', q{select from ojs.push('test', queue => 'new')});
is($node->safe_psql('staging', q{select count(*) from ojs.claim('new', 'w')}), 1, 'the copy can be worked with');

# By CREATE DATABASE: no worker may enter before ojs.worker is off there.
$node->safe_psql('postgres', 'alter database app allow_connections false');
awaits($node, q{select count(*) = 0 from pg_stat_activity where datname = 'app'}, 'the worker leaves a closed database')
    if $node->safe_psql('postgres', q{select count(pg_terminate_backend(pid)) from pg_stat_activity
        where datname = 'app'}) >= 0;
$node->safe_psql('postgres', 'create database twin template app allow_connections false');
$node->safe_psql('postgres', 'alter database app allow_connections true');
$node->safe_psql('postgres', 'alter database twin set ojs.worker = off');
$node->safe_psql('postgres', 'alter database twin allow_connections true');
my $twin = $node->safe_psql('twin', $jobs);
$twice_more->();
is($node->safe_psql('twin', $jobs), $twin, 'where ojs.worker is off for the database, no cron entry runs PGX-13');
is($node->safe_psql('twin', q{select ojs.health() #>> '{worker,state}'}), 'off', 'and health says so PGX-13');
$node->safe_psql('postgres', 'alter database twin reset ojs.worker');
$node->safe_psql('twin', 'select ojs.start_worker()');
awaits($node, q{select ojs.health() #>> '{worker,state}' = 'running'}, 'without the setting a worker can be started',
    'twin');
$node->safe_psql('postgres', 'alter database twin set ojs.worker = off');
awaits($node, 'select ' . workers('twin') . ' = 0', 'and it leaves when the setting comes back PGX-13', 'twin');
$node->stop;
done_testing();
