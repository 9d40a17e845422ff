# The pg_cron recipe of docs/how-to/upkeep.md, with the real pg_cron (PGX-06). pg_cron before 1.5 knows whole minutes
# only, so this waits for the next one.
# Runs long: pg_cron begins with the minute.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;

my $library = `$ENV{PG_CONFIG} --pkglibdir 2>/dev/null` || `pg_config --pkglibdir`;
chomp $library;
plan skip_all => 'pg_cron is not installed' unless -e "$library/pg_cron.so";

my $node = server('cron', conf => "shared_preload_libraries = 'pg_cron'\ncron.use_background_workers = on\n");
$node->safe_psql('postgres', 'create extension pg_cron');

my $lapsed = pushed($node, 'lapsed');
my $due = pushed($node, 'due', "delay => '1 second'");
$node->safe_psql('postgres', "select from ojs.claim('lapsed', 'gone', lease => '100 ms')");
$node->safe_psql('postgres', q{select cron.schedule('ojs-tick', '* * * * *', 'select ojs.tick()')});

awaits($node, "select exists (select from ojs_store.ready where job_id = '$lapsed')",
    'PGX-06: pg_cron reaps a lapsed lease by ojs.tick()');
awaits($node, "select exists (select from ojs_store.ready where job_id = '$due')", 'PGX-06: and promotes a due job');
awaits($node, "select exists (select from cron.job_run_details where status = 'succeeded'
    and command = 'select ojs.tick()')",
    'PGX-06: its run succeeded');
$node->stop;
done_testing();
