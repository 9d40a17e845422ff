# reuse.pl: new rows of ready and lease go where rows were that have been taken, before vacuum comes
# (src/store/reuse.cpp): PGX-12.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Ojs;
use Test::More;

my $node = server('reuse', conf => "fsync = off\n"); # and without autovacuum
my $push = q{select from ojs.push_many((select jsonb_agg('{"type": "a.b", "args": [], "queue": "q"}'::jsonb)
    from generate_series(1, 100))) \g /dev/null};
my $work = q{select array_agg(id) as ids from ojs.claim('q', 'w', 100) \gset
    select done from ojs.ack_many('w', :'ids'::uuid[]) \g /dev/null};
my $one = q{select id from ojs.claim('q', 'w') \gset
    select from ojs.ack(:'id', worker => 'w') \g /dev/null};

sub pages {
    my ($table) = @_;
    return $node->safe_psql('postgres',
        "select pg_relation_size('ojs_store.$table') / current_setting('block_size')::int");
}
sub in_use {
    return $node->safe_psql('postgres', q{select (select count(*) from ojs_store.ready) || ' ' ||
        (select count(*) from ojs_store.lease) || ' ' || (select count(*) from ojs_store.finished)});
}

# 100 jobs take one page of ready, more than two of lease.
$node->safe_psql('postgres', join "\n", $push, ($push, $work) x 100);
is(in_use(), '100 0 10000', 'ten thousand jobs have been done');
cmp_ok(pages('ready'), '<', 60, 'and ready has not a page for each hundred');
cmp_ok(pages('lease'), '<', 80, 'nor has lease two');

my ($ready, $lease) = (pages('ready'), pages('lease'));
$node->safe_psql('postgres', join "\n", ($push) x 30, ($one) x 3000);
is(in_use(), '100 0 13000', 'three thousand more, one by one');
cmp_ok(pages('lease') - $lease, '<', 30, 'lease has used its pages again');

# While an old snapshot may see the rows, their pages are not used again, and nothing goes wrong.
my $old = $node->background_psql('postgres');
$old->query_safe('begin isolation level repeatable read; select count(*) from ojs_store.ready');
$lease = pages('lease');
$node->safe_psql('postgres', join "\n", ($push, $work) x 20);
is(in_use(), '100 0 15000', 'two thousand more beside an old snapshot');
cmp_ok(pages('lease') - $lease, '>', 30, 'which takes new pages');
is($old->query_safe('select count(*) from ojs_store.ready'), '100', 'the snapshot still shows what it showed');
$old->query_safe('commit');
$old->quit;

# What a session remembers of pages is out of date once the tables have been written anew.
my $session = $node->background_psql('postgres', on_error_stop => 1);
for my $anew ('vacuum full ojs_store.ready, ojs_store.lease', 'vacuum ojs_store.ready, ojs_store.lease') {
    $session->query_safe(join "\n", ($push, $work) x 10);
    $node->safe_psql('postgres', $anew);
    $session->query_safe(join "\n", ($push, $work) x 10);
}
$session->quit;
is(in_use(), '100 0 19000', 'four thousand more around VACUUM');
is($node->safe_psql('postgres', q{select count(*), count(distinct id) from ojs.jobs where state = 'completed'}),
    '19000|19000', 'each job is completed');

done_testing();
