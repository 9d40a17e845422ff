# What test/torture found, each as a test of its own.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;

# The worker commits without waiting for the disk; with this writer nothing gets there by itself.
my $node = server('found', preload => 1, conf => "wal_writer_delay = 10s\nfsync = on\n");

# A claim inside a savepoint that has written nothing yet meets what its transaction took before the savepoint.
my $job = pushed($node, 'savepoint');
my $session = $node->background_psql('postgres', on_error_stop => 0);
$session->query_safe('begin');
is($session->query_safe("select id from ojs.claim('savepoint', 'a')"), $job, 'a claim before a savepoint');
$session->query_safe('savepoint s');
is($session->query_safe("select id from ojs.claim('savepoint', 'a')"), '', 'a claim inside it finds nothing more');
$session->query_safe('rollback');
is($session->query_safe("select id from ojs.claim('savepoint', 'a')"), $job,
    'OP-13: after the rollback the job is found again');
$session->quit;

# The worker reaps a lease, a claim counts on from there, and the server dies: only that claim may be forgotten.
$job = pushed($node, 'lapse');
$node->safe_psql('postgres', "select from ojs.claim('lapse', 'a', lease => '100 ms')");
awaits($node, "select exists (select from ojs_store.ready where job_id = '$job')", 'the worker reaps a lapsed lease');
is($node->safe_psql('postgres', "select deliveries || ' ' || attempt from ojs.claim('lapse', 'b')"), '2 2',
    'a second delivery');
$node->stop('immediate');
$node->start;
is($node->safe_psql('postgres', "select deliveries || ' ' || attempt from ojs.claim('lapse', 'c')"), '2 2',
    'R-17: the crash forgets the second delivery and not the first');
$node->stop;
done_testing();
