# More databases than workers: they take turns, and each is served when it is due (PGX-04, OBS-01).
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = server('turns', preload => 1, conf => "max_worker_processes = 8\n");
my @databases = map { "db$_" } 1 .. 12;
for my $database (@databases) {
    $node->safe_psql('postgres', "create database $database");
    $node->safe_psql($database, 'create extension ojs');
}

# A delayed job, a lapsed lease and a cron entry in each, and no session that would find them by claiming.
$node->safe_psql($_, q{
    select ojs.push('t', queue => 'late', delay => '1 s');
    select ojs.push('t', queue => 'lapsing');
    select count(*) from ojs.claim('lapsing', 'w', lease => '1 s');
    select ojs.schedule('tick', '@every 1s', '{"type": "t", "args": [], "queue": "cron"}',
        '{"overlap_policy": "allow"}')}) for @databases;
awaits($node, q{select count(*) = 2 from ojs_store.ready r join ojs_store.job j on j.id = r.job_id
    where j.queue in (select id from ojs_store.queue where name in ('late', 'lapsing'))},
    "what falls due is found in $_", $_) for @databases;
awaits($node, q{select count(*) > 0 from ojs_store.cron where run_count > 1}, "cron entries run in $_",
    $_) for @databases;

is($node->safe_psql('postgres', q{select count(*) <= 4 from pg_stat_activity where backend_type = 'ojs worker'}), 't',
    'by default at most half of max_worker_processes are workers');
is($node->safe_psql('db7', q{select ojs.health() ->> 'status'}), 'ok', 'health is ok while a database has its turns');
like($node->safe_psql('db7', q{select ojs.health() #>> '{worker,state}'}), qr/^(running|between turns|starting)$/,
    'and says what it gets');
my $metric = sub {
    return $node->safe_psql(shift, q{select (regexp_match(ojs.metrics(), e'\\nojs_upkeep_running ([01])'))[1]});
};
$node->safe_psql('postgres', 'create database idle');
$node->safe_psql('idle', 'create extension ojs');
awaits($node, q{select ojs.health() #>> '{worker,state}' = 'between turns'}, 'a database has its turn', 'idle');
is($metric->('idle'), 1, 'between two turns upkeep counts as running OBS-01');
# From here on only a worker commits there, and once it has had a turn nothing is left to do.
awaits($node, q{select count(*) = 0 from pg_stat_activity where datname = 'idle' and backend_type = 'client backend'},
    'the sessions of the idle database are gone');
my $commits = q{select xact_commit from pg_stat_database where datname = 'idle'};
my $before = $node->safe_psql('postgres', $commits);
awaits($node, "select ($commits) > $before and count(*) = 0 from pg_stat_activity where datname = 'idle'",
    'the idle database has had its turn');

# None may run: a database that is due says so.
$node->append_conf('postgresql.conf', "ojs.max_workers = 0\n");
$node->reload;
awaits($node, q{select count(*) = 0 from pg_stat_activity where backend_type = 'ojs worker'},
    'workers leave when fewer may run');
$node->safe_psql('db3', q{select ojs.push('t', queue => 'late', delay => '1 s')});
awaits($node, q{select ojs.health() ->> 'status' = 'degraded' and ojs.health() #>> '{worker,state}' = 'waiting'},
    'a database that nothing serves is degraded', 'db3');
is($metric->('db3'), 0, 'and upkeep counts as not running OBS-01');
# It was left alone for longer than a worker may be late.
my $later = $node->safe_psql('postgres', q{select clock_timestamp() + interval '12 seconds'});
awaits($node, "select clock_timestamp() > '$later'", 'time passes');
is($node->safe_psql('idle', q{select ojs.ready() \g /dev/null
    select ojs.health() ->> 'status'}), 'ok', 'the first look at an idle database finds nothing late OBS-01');
$node->append_conf('postgresql.conf', "ojs.max_workers = 1\n");
$node->reload;
awaits($node, q{select count(*) = 2 from ojs_store.ready r join ojs_store.job j on j.id = r.job_id
    where j.queue in (select id from ojs_store.queue where name = 'late')}, "one worker serves $_", $_) for 'db3';
awaits($node, q{select ojs.health() ->> 'status' = 'ok'}, 'and all is well again', 'db3');

# A database that goes is not looked for any more.
$node->safe_psql('postgres', 'drop database db5 with (force)');
$node->append_conf('postgresql.conf', "ojs.max_workers = 20\n");
$node->reload;
awaits($node, q{select ojs.health() ->> 'status' = 'ok'}, "each database is served: $_", $_) for 'db1', 'db12';
$node->stop;
unlike(slurp_file($node->logfile), qr/FATAL:  database \d+ does not exist|PANIC|TRAP/,
    'no worker is started for a database that is gone');

done_testing();
