# idle_queues.pl: what a tick reads does not grow with the number of queues in which nothing is to be done: OP-25.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Ojs;
use Test::More;

# Nothing has counted rows or removed dead versions, as just after many queues were made.
my $node = server('idle_queues', conf => "fsync = off\n");

# Blocks and rows that the last of so many ticks in a session reads. The least of three: where a session begins to put
# the queues in order is chance. How many rows of `finished` retention reads goes by the time since the last tick.
sub reads
{
    my ($ticks) = @_;
    my (@blocks, @rows);
    for (1 .. 3) {
        my $out = $node->safe_psql('postgres', 'select ojs.tick();' x ($ticks - 1) . q{
            begin;
            explain (analyze, buffers, costs off, timing off) select ojs.tick();
            select 'rows ' || sum(pg_stat_get_xact_tuples_returned(oid) + pg_stat_get_xact_tuples_fetched(oid))
            from pg_class where relnamespace = 'ojs_store'::regnamespace and relname <> 'finished';
            commit;});
        my ($top) = $out =~ /Buffers: ([^\n]*)/;
        my $sum = 0;
        $sum += $1 while ($top // '') =~ /(?:hit|read)=(\d+)/g;
        push @blocks, $sum;
        push @rows, $out =~ /rows (\d+)/;
    }
    return map { (sort { $a <=> $b } @$_)[0] } \@blocks, \@rows;
}

# Of three queues one has settings of its own, of each kind that a tick reads. Each change leaves a dead version. Each
# queue keeps a dead letter, whose time has not come.
my %reads;
my $made = 0;
for my $size (300, 3000) {
    $node->safe_psql('postgres', qq{
        select count(*) from generate_series($made + 1, $size) n, ojs.create_queue('q-' || n);
        select count(*) from generate_series($made + 1, $size, 3) n, ojs.configure_queue('q-' || n,
            jsonb_build_object('retention', jsonb_build_object('completed', 'PT' || n || 'H'), 'dead_letter_ttl', 'PT'
                || n || 'H', 'dead_letter_max_size', n, 'max_size', n, 'concurrency', n, 'rate_limit',
                jsonb_build_object('rate', jsonb_build_object('limit', n, 'period', 'PT1M')), 'replay_rules',
                jsonb_build_array(jsonb_build_object('name', 'again', 'delay', 'PT1H', 'max_replays', 1))));
        select count(*) from ojs.push_many((select jsonb_agg(jsonb_build_object('type', 't', 'args', '[]'::jsonb,
            'queue', 'q-' || n, 'retry', '{"max_attempts": 1, "on_exhaustion": "dead_letter"}'::jsonb))
            from generate_series($made + 1, $size) n));
        select count(ojs.fail(c.id, '{"type": "t", "message": "m"}')) from generate_series($made + 1, $size) n,
            ojs.claim('q-' || n, 'w') c});
    $made = $size;
    $reads{$_}{$size} = [reads($_)] for 1, 3;
}
for my $ticks (1, 3) {
    my ($few, $many) = @{$reads{$ticks}}{300, 3000};
    note "tick $ticks of a session: blocks, rows @$few, then @$many";
    # Indexes may have become deeper.
    cmp_ok($many->[0], '<', 1.5 * $few->[0] + 150,
        "OP-25: tick $ticks of a session reads no more blocks for more queues");
    cmp_ok($many->[1], '<', 1.5 * $few->[1] + 150, 'nor rows');
}

# A queue that was dropped, or is there twice, is found all the same, wherever the search begins.
$node->safe_psql('postgres', q{
    insert into ojs_store.queue select id, name, state, created_at, '-infinity', '{}' from ojs_store.queue
    where name = 'q-7'});
awaits($node, q{select count(*) = 1 from ojs.tick(), ojs_store.queue where name = 'q-7'},
    'a row that is there twice goes, whatever else there is');

# Jobs that fall due together: a claim makes a thousand of them claimable, and the next ones at once need no more.
$node->safe_psql('postgres', q{
    select count(ojs.push('test.job', queue => 'due', delay => '1 h')) from generate_series(1, 6000)});
$node->safe_psql('postgres', q{set ojs.clock_offset = '2 h'; } . q{select from ojs.claim('due', 'w'); } x 5);
cmp_ok($node->safe_psql('postgres', q{select count(*) from ojs.jobs where queue = 'due' and state <> 'scheduled'}),
    '<', 5000, 'not each of five claims in a row looks for due jobs while there are enough: OP-25');

$node->stop;
done_testing();
