# Maintenance mode through a restart, a crash and a dump, with a live worker; and who waits for its end (ADM-05).
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = server('maintenance', preload => 1);
worker_pid($node);
# First of all: a tick that has begun before it may still run a cron entry.
$node->safe_psql('postgres', q{
    select ojs.set_maintenance(true, 'a test');
    select from ojs.push('test.job', queue => 'ready');
    select from ojs.push('test.job', queue => 'later', delay => '1 second');
    select ojs.schedule('second', '* * * * * *', '{"type": "cron.job", "queue": "cron"}',
        '{"overlap_policy": "allow"}');
    delete from ojs_store.stored_event});
my $stands = sub {
    my ($when, $database) = @_;
    $database //= 'postgres';
    awaits($node, q{select ojs_store.now() > max(scheduled_at) + interval '1 second' from ojs.jobs},
        "ADM-05: time passes, $when", $database);
    is($node->safe_psql($database, q{select string_agg(queue || ' ' || state,
        ', ' order by queue) from ojs.jobs where queue <> 'cron'}), 'later scheduled, ready available',
        "ADM-05: no worker promotes anything, $when");
    is($node->safe_psql($database, q{select count(*) from ojs_store.stored_event where type = 'cron.triggered'}), 0,
        "ADM-05: no cron entry runs, $when");
    is($node->safe_psql($database, q{select count(*) from ojs.claim(array['ready', 'later'], 'w', max => 10)}), 0,
        "ADM-05: nothing is handed out, $when");
    is($node->safe_psql($database, q{select ojs.health() #>> '{maintenance,reason}'}), 'a test',
        "ADM-05: health says why, $when");
};
$stands->('with a worker');

# A worker that has nothing to do does not run in circles: at most one pass for each tick_interval.
my $ticks = q{select xact_commit from pg_stat_database where datname = 'postgres'};
my $before = $node->safe_psql('postgres', $ticks);
$node->safe_psql('postgres', 'select pg_sleep(2)');
cmp_ok($node->safe_psql('postgres', $ticks) - $before, '<', 100, 'ADM-05: a worker with overdue jobs rests');

$node->restart;
$stands->('after a restart');
$node->stop('immediate');
$node->start;
$stands->('after a crash');

my $dump = $node->basedir . '/dump';
$node->command_ok(['pg_dump', '-Fc', '-f', $dump, '-d', $node->connstr('postgres')], 'PGX-13: pg_dump');
$node->safe_psql('postgres', 'create database target');
# All at once: else a worker may see the jobs before it sees that there is maintenance.
$node->command_ok(['pg_restore', '--exit-on-error', '--single-transaction', '-d', $node->connstr('target'), $dump],
    'PGX-13: pg_restore');
$stands->('in a restored database', 'target');

$node->safe_psql('target', 'select ojs.set_maintenance(false)');
awaits($node, q{select state = 'available' from ojs.jobs where queue = 'later'},
    'ADM-05: its worker works when it ends there', 'target');
$node->safe_psql('target', q{insert into ojs_store.maintenance values ('2001-01-01', 'again', null, 'me')});
is($node->safe_psql('target', q{select count(*) from ojs.claim(array['ready', 'later'], 'w', max => 10)}), 0,
    'ADM-05: a row that a restore brings counts at once');

# Who waits is woken at the end.
my $waits = $node->background_psql('postgres');
$waits->{stdin} .= "select 'claimed ' || count(*) from ojs.claim('ready', 'w', wait => '30 s');\n";
$waits->{run}->pump_nb;
awaits($node, q{select exists (select from pg_stat_activity where state = 'active' and wait_event_type = 'Extension'
    and query like '%wait =>%')}, 'ADM-05: a claim waits');
$node->safe_psql('postgres', 'select ojs.set_maintenance(false)');
like($waits->query_safe(''), qr/claimed 1/, 'ADM-05: and gets its job when maintenance ends');
awaits($node, q{select state = 'available' from ojs.jobs where queue = 'later'}, 'ADM-05: the worker promotes');
awaits($node, q{select run_count > 0 from ojs.crons}, 'ADM-05: and runs cron entries');
is($node->safe_psql('postgres',
    q{select max(n) from (select count(*) as n from ojs.jobs where queue = 'cron'
        group by meta ->> 'cron_scheduled_at') c}), 1, 'CRN-09: each occurrence once');
$waits->quit;

# A listener that found nothing meanwhile is told of what it may have now.
$node->safe_psql('postgres', q{select ojs.set_maintenance(true); select from ojs.push('test.job', queue => 'news')});
my $session = listener($node);
is($session->query_safe("select count(*) from ojs.claim('news', 'w')"), 0, 'ADM-05: a listener finds nothing');
ok(!heard($session, 'news', 0.7), 'ADM-05: and is not told of what it cannot have');
$node->safe_psql('postgres', 'select ojs.set_maintenance(false)');
ok(heard($session, 'news'), 'ADM-05 PGX-08: it is told of the end');
$session->quit;
$node->stop;

done_testing();
