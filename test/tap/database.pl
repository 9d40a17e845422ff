# A database with a worker in it can be dropped, renamed and used as a template, and DROP EXTENSION is not blocked.
# Runs long.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;

for my $preload (1, 0) {
    my $how = $preload ? 'preloaded' : 'start_worker';
    my $node = server("ddl_$how", preload => $preload);
    my $with_worker = sub {
        my ($database) = @_;
        $node->safe_psql($database, 'select ojs.start_worker()') unless $preload;
        $node->poll_query_until('postgres', 'select ' . workers($database) . ' = 1') or die "no worker in $database";
    };

    $node->safe_psql('postgres', 'create database shop');
    $node->safe_psql('shop', 'create extension ojs');
    $with_worker->('shop');
    my ($code, $out, $err) = $node->psql('postgres', 'create database copy template shop');
    is($code, 0, "PGX-04: CREATE DATABASE TEMPLATE, $how") or diag $err;
    is($node->safe_psql('copy', 'select ojs.ready()'), 't', "PGX-04: the copy works, $how");

    $with_worker->('shop');
    ($code, $out, $err) = $node->psql('postgres', 'alter database shop rename to store');
    is($code, 0, "PGX-04: ALTER DATABASE RENAME, $how") or diag $err;
    $with_worker->('store');
    pass("PGX-04: a worker comes back after it, $how");

    ($code, $out, $err) = $node->psql('postgres', 'drop database store');
    is($code, 0, "PGX-04: DROP DATABASE, $how") or diag $err;

    $node->safe_psql('postgres', 'create database shop');
    $node->safe_psql('shop', 'create extension ojs');
    $with_worker->('shop');
    ($code, $out, $err) = $node->psql('postgres', 'drop database shop with (force)');
    is($code, 0, "PGX-04: DROP DATABASE WITH (FORCE), $how") or diag $err;

    # DROP EXTENSION while the worker ticks and a session has used it; then anew, in the same sessions.
    $with_worker->('postgres');
    my $session = $node->background_psql('postgres', on_error_stop => 0);
    $session->query_safe("select from ojs.push('test.job')");
    for my $round (1 .. 5) {
        ($code, $out, $err) = $node->psql('postgres', "set lock_timeout = '60s'; drop extension ojs cascade");
        is($code, 0, "PGX-02: DROP EXTENSION in use, $how, round $round") or diag $err;
        $node->safe_psql('postgres', 'create extension ojs');
        is($session->query_safe("select state from ojs.push('test.job', queue => 'q$round')"), 'available',
            "PGX-02: the session goes on with the new one, $how, round $round");
        is($session->query_safe("select queue from ojs.claim('q$round', 'w')"), "q$round",
            "PGX-02: and claims, $how, round $round");
    }
    # One that waits for the lock of a DROP EXTENSION gets the answer that everybody gets afterwards.
    my $dropping = $node->background_psql('postgres');
    for my $call (q{ojs.push('test.job')}, q{ojs.claim('q1', 'w')}, q{ojs.claim('q1', 'w', wait => '20 s')},
        q{ojs.info(gen_random_uuid())}) {
        $session->query("set statement_timeout = '60s'; select from $call");
        $dropping->query_safe('begin; drop extension ojs cascade');
        $session->{stderr} = '';
        $session->{stdin} .= "\\set VERBOSITY verbose\nselect from $call;\n\\warn 'ended'\n";
        $session->{run}->pump_nb;
        awaits($node, q{select count(*) > 0 from pg_stat_activity
            where wait_event_type = 'Lock' and query like '%ojs.%'}, "$call waits for DROP EXTENSION, $how");
        $dropping->query_safe('commit');
        $session->{run}->pump until $session->{stderr} =~ /^ended$/m;
        like($session->{stderr}, qr/ERROR:  57P03: .*not installed.*HINT:  Run CREATE EXTENSION ojs/s,
            "PGX-02: $call that waited for DROP EXTENSION says what is missing, $how");
        $session->{stdout} = $session->{stderr} = '';
        $node->safe_psql('postgres', 'create extension ojs');
    }
    $dropping->quit;
    $session->quit;
    # What users call, what the extension keeps, and what the gateway's endpoints are made of.
    is($node->safe_psql('postgres',
        "select string_agg(nspname, ' ' order by nspname) from pg_namespace where nspname like 'ojs%'"),
        'ojs ojs_http ojs_store', "PGX-02: three schemas, $how");
    $node->safe_psql('postgres', 'drop extension ojs cascade');
    is($node->safe_psql('postgres', "select count(*) from pg_namespace where nspname like 'ojs%'"), 0,
        "PGX-02: and none after DROP, $how");
    awaits($node, 'select ' . workers() . ' = 0', "PGX-04: without the extension the worker ends, $how");
    $node->stop;
    unlike(slurp_file($node->logfile), qr/PANIC|TRAP|deadlock detected/, "PGX-04: a clean log, $how");
}

done_testing();
