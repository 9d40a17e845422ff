# The upkeep worker: started by preload and by ojs.start_worker(), one per database, obeys signals (PGX-03, PGX-04).
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = server('preloaded', preload => 1);

awaits($node, 'select ' . workers() . ' = 1', 'PGX-04: CREATE EXTENSION brings a worker within a moment');
is(health($node, 'worker,state'), 'running', 'OBS-01: health says that the worker runs');
is(health($node, 'preloaded'), 'true', 'PGX-03: health says that the library is preloaded');
is(health($node, 'wake_up'), 'latch and NOTIFY by the worker', 'PGX-03: health names the way of waking');
is($node->safe_psql('postgres', 'select ojs.start_worker()'), 'f', 'PGX-04: start_worker starts no second one');
is($node->safe_psql('postgres', 'select ' . workers()), '1', 'PGX-04: there is still one');

# A scheduled job is promoted by nobody but the worker: nothing else looks.
my $id = pushed($node, 'due', "delay => '300 ms'");
awaits($node, "select exists (select from ojs_store.ready where job_id = '$id')",
    'Q-46: the worker promotes a job that falls due');
$node->safe_psql('postgres', "select from ojs.claim('due', 'w', lease => '200 ms')");
awaits($node, "select exists (select from ojs_store.ready where job_id = '$id')",
    'Q-46: the worker reaps a lapsed lease');

my $pid = worker_pid($node);
$node->safe_psql('postgres', "select pg_cancel_backend($pid)");
$id = pushed($node, 'due', "delay => '100 ms'");
awaits($node, "select exists (select from ojs_store.ready where job_id = '$id')",
    'PGX-04: the worker survives a cancel');
is(worker_pid($node), $pid, 'PGX-04: and is the same process');

$node->safe_psql('postgres', "select pg_terminate_backend($pid)");
awaits($node, "select " . workers() . " = 1 and not exists (select from pg_stat_activity where pid = $pid)",
    'PGX-04: after SIGTERM the launcher starts another one');

$node->append_conf('postgresql.conf', 'ojs.worker = off');
$node->reload;
awaits($node, 'select ' . workers() . ' = 0', 'PGX-04: SIGHUP with ojs.worker = off ends it');
is(health($node, 'worker,state'), 'off', 'OBS-01: health says so');
$id = pushed($node, 'lazy');
is($node->safe_psql('postgres', "select id from ojs.claim('lazy', 'w')"), $id,
    'PGX-03: push and claim work without it');
$node->append_conf('postgresql.conf', 'ojs.worker = on');
$node->reload;
awaits($node, 'select ' . workers() . ' = 1', 'PGX-04: and on brings it back');

# Tenants are switched on for the database, by which this worker has begun.
$pid = worker_pid($node);
$node->safe_psql('postgres', 'alter database postgres set ojs.tenancy = optional');
awaits($node, "select count(*) = 1 and bool_and(pid <> $pid) from pg_stat_activity
    where backend_type = 'ojs worker' and datname = 'postgres'", 'MT-01: another worker begins by that');
$node->safe_psql('postgres', q[select ojs.create_queue('bounded', '{"max_deliveries": 3, "dead_letter": "graves"}')]);
$id = pushed($node, 'bounded', q[meta => '{"tenant_id": "acme"}']);
$node->safe_psql('postgres', "select from ojs.claim('bounded\@acme', 'w', lease => '200 ms')");
awaits($node, "select exists (select from ojs_store.ready where job_id = '$id' and attempt = 0)",
    "MT-02: the worker reaps a tenant's lease by the settings of the queue");

# It serves all tenants, whomever sessions act for.
$pid = worker_pid($node);
$node->safe_psql('postgres', "alter database postgres set ojs.tenant = 'brown'");
awaits($node, "select count(*) = 1 and bool_and(pid <> $pid) from pg_stat_activity
    where backend_type = 'ojs worker' and datname = 'postgres'", 'MT-01: and another one by what it says then');
$node->safe_psql('postgres', q[set ojs.tenant = ''; select ojs.configure_queue('again@acme',
    '{"replay_rules": [{"name": "all", "delay": "PT0S", "max_replays": 1}]}')]);
$node->safe_psql('postgres', q[set ojs.tenant = 'acme'; select ojs.fail((ojs.claim('again', 'w')).id,
    '{"type": "E", "message": "no", "retryable": false}')
    from ojs.push('again.x', queue => 'again', retry => '{"on_exhaustion": "dead_letter"}')]);
awaits($node, q[select exists (select from ojs_store.ready r join ojs_store.job j on j.id = r.job_id
    where j.type = 'again.x')], 'MT-01: the worker acts for no tenant');
$node->safe_psql('postgres', 'alter database postgres reset ojs.tenant');

# A second copy: by hand, past the launcher.
$node->safe_psql('postgres', 'create database other');
$node->safe_psql('other', 'create extension ojs');
awaits($node, 'select ' . workers('other') . ' = 1', 'PGX-04: each database has a worker of its own');
$node->safe_psql('postgres', 'create database bare');
is($node->safe_psql('postgres', 'select ' . workers('bare')), '0', 'PGX-04: a database without the extension has none');
$node->stop;

$node = server('plain', conf => "log_min_messages = debug1\n");
is(health($node, 'preloaded'), 'false', 'PGX-03: health says that the library is not preloaded');
is(health($node, 'coalescing'), 'false', 'PGX-03: and that there is no coalescing');
is(health($node, 'worker,state'), 'not started', 'PGX-03: and no worker');
is(health($node, 'wake_up'), 'NOTIFY by each transaction', 'PGX-03: and how it wakes');
is($node->safe_psql('postgres', 'select ojs.start_worker()'), 't', 'PGX-04: start_worker starts one without preload');
is($node->safe_psql('postgres', 'select ojs.start_worker()'), 'f', 'PGX-04: and only one');
is(health($node, 'worker,state'), 'running', 'OBS-01: health sees it');
$id = pushed($node, 'due', "delay => '200 ms'");
awaits($node, "select exists (select from ojs_store.ready where job_id = '$id')", 'Q-46: it does upkeep');

$pid = worker_pid($node);
$node->safe_psql('postgres', "alter database postgres set ojs.tenancy = optional");
awaits($node, "select count(*) = 1 and bool_and(pid <> $pid) from pg_stat_activity
    where backend_type = 'ojs worker' and datname = 'postgres'", 'MT-01: what a database says is for its worker');

# Four ask at once for a database without a worker: one leads, the others end with code 0.
$pid = worker_pid($node);
$node->safe_psql('postgres', "select pg_terminate_backend($pid)");
awaits($node, 'select ' . workers() . ' = 0', 'PGX-04: SIGTERM ends a worker without preload');
my @sessions = map { $node->background_psql('postgres') } 1 .. 4;
$_->{stdin} .= "select 'started ' || ojs.start_worker();\n" for @sessions;
$_->{run}->pump_nb for @sessions;
$_->query_until(qr/started (true|false)/, '') for @sessions;
awaits($node, 'select ' . workers() . ' = 1', 'PGX-04: of several started at once one remains');
$_->quit for @sessions;
$node->stop;
unlike(slurp_file($node->logfile), qr/background worker "ojs worker" .* exited with exit code [2-9]|PANIC|TRAP/,
    'PGX-04: no worker crashed');

done_testing();
