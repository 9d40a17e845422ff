# fair_scheduling.pl: many sessions that claim one job at a time share queues and pools out by their weights: FS-01,
# FS-02. Counts, not times.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = server('fair', preload => 1, conf => "fsync = off\nmax_connections = 60\n");
$node->safe_psql('postgres', q{
    select count(*) from unnest(array['a', 'b', 'c', 'd']) q, generate_series(1, 400) i,
        lateral ojs.push('test.job', jsonb_build_array(i), queue => q);
    select ojs.set_pool('of-three', '{"queues": ["a", "b", "c"], "strategy": "weighted",
        "weights": {"a": 5, "b": 3, "c": 1}}');
    select ojs.set_pool('bounded', '{"queues": ["a", "b", "d"], "concurrency": 7}');
    create view shares as
        select coalesce(string_agg(queue || ' ' || n, ', ' order by queue), '') as shares
        from (select queue, count(*) as n from ojs.leases group by 1) l;
});

# Each client of pgbench is a session of its own.
sub claims {
    my ($claim, $clients, $transactions, @options) = @_;
    $node->safe_psql('postgres', "select ojs.nack(job_id) from ojs.leases");
    $node->pgbench("--client=$clients --transactions=$transactions --jobs=2 --no-vacuum @options", 0,
        [qr{processed: @{[$clients * $transactions]}/}], [qr/^$/], 'sessions claim',
        { 'claim' . ++our $script => "select count(*) from $claim;" });
    return $node->safe_psql('postgres', 'select * from shares');
}

is(claims(q{ojs.claim(array['a', 'b', 'c'], 'w', strategy => 'weighted', weights => '{"a": 5, "b": 3}')}, 8, 18),
    'a 80, b 48, c 16', 'FS-01: eight sessions of 18 claims each take the exact shares');
is(claims(q{ojs.claim_pool('of-three', 'w')}, 8, 18), 'a 80, b 48, c 16', 'FS-02: of a pool, too');
is(claims(q{ojs.claim_pool('of-three', 'w', 6)}, 4, 9), 'a 120, b 72, c 24', 'FS-01: and with several jobs a claim');
is(claims(q{ojs.claim(array['none', 'b', 'a'], 'w', missing_ok => true, strategy => 'round-robin')}, 6, 20),
    'a 60, b 60', 'FS-01: a queue that is not there leaves its share to the others');

# Where each claim is of a session of its own, chance deals: 100 of 200 each on average, and a deviation of 7.
my %got = claims(q{ojs.claim(array['a', 'b'], 'w', strategy => 'round-robin')}, 4, 50, '--connect') =~ /(\w) (\d+)/g;
cmp_ok($got{$_} // 0, '>', 60, "FS-01: new sessions share out, too: $_ has " . ($got{$_} // 0)) for qw(a b);
is(($got{a} // 0) + ($got{b} // 0), 200, 'FS-01: each claim got its job');

# Which of its queues have these is chance.
my $held = 0;
$held += $_ for claims(q{ojs.claim_pool('bounded', 'w', 2)}, 8, 10) =~ /\w (\d+)/g;
is($held, 7, 'FS-02: eight sessions together hold as many jobs of a pool as its concurrency says');
is($node->safe_psql('postgres', q{select places_taken from ojs.pools where name = 'bounded'}), 7, 'FS-02: ojs.pools');

# One that waits for a place gets it.
my $waits = $node->background_psql('postgres');
$waits->{stdin} .= "select 'claimed ' || count(*) from ojs.claim_pool('bounded', 'v', wait => '30 s');\n";
$waits->{run}->pump_nb;
awaits($node, q{select exists (select from pg_stat_activity where state = 'active' and wait_event_type = 'Extension'
    and query like '%wait =>%')}, 'FS-02: a claim waits for a place of the pool');
$node->safe_psql('postgres', 'select ojs.ack(job_id) from ojs.leases limit 1');
like($waits->query_safe(''), qr/claimed 1/, 'FS-02: and gets its job when one is free');

# A crash forgets turns and places, and nothing is wrong then.
$node->stop('immediate');
$node->start;
is(claims(q{ojs.claim_pool('of-three', 'w')}, 2, 9), 'a 10, b 6, c 2', 'FS-02: after a crash the shares are the same');
is(claims(q{ojs.claim_pool('bounded', 'w', 100)}, 2, 1) =~ s/\w (\d+)(, )?/'+' x $1/ger, '+' x 7,
    'FS-02: and so is the bound');

done_testing();
