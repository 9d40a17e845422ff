# claim_floor.pl: beside a snapshot that is held for long, a claim does not pass what has been claimed since, not even a
# new session's or one that comes back short (src/shared/claim_floor.cpp); and it misses no job that comes in behind.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Ojs;
use Test::More;

my $node = server('claim_floor', preload => 1, conf => "fsync = off\nojs.worker = off\n");
my $sql = sub { return $node->safe_psql('postgres', $_[0]) };
my $push = q{select from ojs.push_many((select jsonb_agg('{"type": "a.b", "args": [], "queue": "q"}'::jsonb)
    from generate_series(1, 1000))) \g /dev/null};
my $claim = q{select array_agg(id) as ids from ojs.claim('q', 'w', 1000) \gset};
my $give_back = q{select done from ojs.nack_many('w', :'ids'::uuid[]) \g /dev/null};
my $end = q{select done from ojs.ack_many('w', :'ids'::uuid[]) \g /dev/null};

# The pages that a new session's claims touch which find less than they ask for: of the first, which looks up all it
# needs, and of the third.
sub pages {
    my @touched = $sql->(join "\n", (q{explain (analyze, buffers, costs off, timing off)
        select from ojs.claim('q', 'w', 10);}) x 3) =~ /^Function Scan.*\n\s+Buffers: (.*)/mg;
    return map { eval join '+', /(?:hit|read)=(\d+)/g } @touched[0, 2];
}
sub is_long { my ($name) = @_; cmp_ok((pages())[1], '>', 300, $name) }

my $held = pushed($node, 'q');
my $lost = pushed($node, 'q');
my $other = $node->background_psql('postgres', on_error_stop => 1);
$other->query_safe("begin; select from ojs.claim('q', 'w')");
$sql->("delete from ojs_store.ready where job_id = '$lost'"); # until it is put back

my @at_first = pages();

my $old = $node->background_psql('postgres', on_error_stop => 1);
$old->query_safe('begin isolation level repeatable read; select count(*) from ojs_store.job');
my $worker = $node->background_psql('postgres', on_error_stop => 1);
$worker->query_safe(join "\n", ($push, $claim, $give_back, $claim, $end) x 120);
is($sql->('select count(*) from ojs_store.finished'), 120000, '120,000 jobs were done, each at its second delivery');

# The walks of this session raise the floor: up to jobs that it has met a second ago, but not above one that may come
# back. A rollback makes it forget what it has met.
my $look = sub { $worker->query_safe("select count(*) from ojs.claim('q', 'w', 10)") for 1 .. 3 };
my $settle = sub {
    $worker->query_safe('select pg_sleep(0.6)'), $look->() for 1 .. 2;
};
sub is_flat {
    my ($name) = @_;
    my @now = pages();
    cmp_ok($now[$_], '<', $at_first[$_] + 60, ($_ == 0 ? 'the first claim' : 'a claim') . " $name") for 0, 1;
}
for (['begin', 'rollback'], ['begin; savepoint s', 'rollback to s; commit'],
    ['begin', "prepare transaction 'p'; rollback prepared 'p'"]) {
    my ($begin, $undo) = @$_;
    $settle->();
    is_long('a claim that may not leave out a job passes all that were done after it');
    $other->query_safe('rollback');
    $worker->query_safe($begin);
    is($worker->query_safe("select id from ojs.claim('q', 'w')"), $held, 'which is found once it is given back');
    $look->();
    $worker->query_safe($undo);
    $other->query_safe('begin');
    is($other->query_safe("select id from ojs.claim('q', 'w')"), $held, 'and again, once its taker has gone back');
    $worker->query_safe(join "\n", $push, $claim, $end);
}
$other->query_safe('commit');
$settle->();
is_flat('of a new session passes none of them once it is taken');

# A job with a position below the floor.
is($sql->("set client_min_messages = error; select ojs_store.reconcile('0')"), 1, 'a job that was lost is put back');
is($worker->query_safe("select id from ojs.claim('q', 'w', 1)"), $lost, 'and found by the next claim');
is_long('claims pass all others again');
$settle->();
is_flat('passes none of them again');
my $changed = pushed($node, 'q');
$sql->("update ojs_store.ready set position = 1 where job_id = '$changed'");
is($worker->query_safe("select id from ojs.claim('q', 'w', 1)"), $changed, 'so is one that a superuser has moved');

# Of another extension, whose jobs begin anew.
$old->query_safe('commit');
$_->quit for $old, $other;
$sql->('drop extension ojs cascade; create extension ojs');
my $first = pushed($node, 'q');
is($worker->query_safe("select id from ojs.claim('q', 'w', 10)"), $first, 'a new extension has no floor');
$worker->quit;
done_testing();
