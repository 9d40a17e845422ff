# growth.pl: some of bench/growth in small: as more is kept, no operation touches more pages than is stated for it:
# OP-25. Runs long.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Ojs;
use Test::More;

my $node = server('growth', preload => 1, extension => 0, conf => "fsync = off\njit = off\nojs.worker = off\n");
local $ENV{PGHOST} = $node->host;
local $ENV{PGPORT} = $node->port;
local $ENV{PGUSER} = $node->safe_psql('postgres', 'select current_user');
my $tests = 0;
my ($program) = grep { -x } map { "$FindBin::RealBin/$_/bench/growth" } '..', '../..';
sub grows_no_more {
    my (@options) = @_;
    open my $bench, '-|', $program, '--here', '--tap', @options or die "bench/growth: $!";
    while (my $line = <$bench>) {
        my ($not, $title) = $line =~ /^(not )?ok - (.*)/ or next;
        ok(!$not, "OP-25: $title");
        $tests++;
    }
    ok(close $bench, 'bench/growth has ended well');
}
grows_no_more('--sizes', '200,2000', qw(ready leases dead workflows limits limit_keys starts cron_runs));
cmp_ok($tests, '>', 100, 'and has measured the operations');
# What small tables hide.
grows_no_more('--sizes', '300,30000', '--only', 'first ten', 'ready');
grows_no_more('--sizes', '300,30000', '--only', 'queue_info', 'ready');
grows_no_more('--sizes', '300,30000', '--only', 'queue and state', 'ready');
grows_no_more('--sizes', '300,30000', 'period');
grows_no_more('--sizes', '1000,20000', 'places');

# Where `ready` is large, a page of what waits begins with the newest of all jobs, and looks at all where these are of
# other queues.
is($node->safe_psql('postgres', q{
    create extension ojs;
    select count(ojs.push('growth.job', queue => 'older', priority => n % 3)) from generate_series(1, 20000) n
        \g /dev/null
    select count(ojs.push('growth.job', queue => 'newer')) from generate_series(1, 2000) \g /dev/null
    select count(ojs.set_priority(id, 5))
        from (select id from ojs.jobs where queue = 'newer' order by id desc limit 9) j \g /dev/null
    select count(*) from ojs.claim('newer', 'w', 5) \g /dev/null
    select count(ojs.push('growth.job', queue => 'newer', delay => '1 h')) from generate_series(1, 5) \g /dev/null
    select string_agg(format('%s %s %s', q, s, l), ', ') from unnest('{older,newer}'::text[]) q,
        unnest('{available,NULL}'::text[]) s,
        lateral (select array_agg(id order by id desc) as ids from ojs.jobs
            where queue = q and (s is null or state = s)) j,
        unnest(array[null, 4, 30]) n,
        lateral (select count(*) filter (where l.id = ids[coalesce(n, 0) + l.r])
            from (select id, row_number() over () as r
                from ojs.list_jobs(q, s, after => ids[n]::text, max => 50)) l) l(l)
    where l <> 50}), '', 'OP-25: pages are the same however they are found');
$node->safe_psql('postgres', 'drop extension ojs cascade');

# A look at one queue does not look at the others.
my $out = $node->safe_psql('postgres', q{
    create extension ojs;
    select from generate_series(1, 3000) n, ojs.create_queue('q-' || n);
    vacuum analyze ojs_store.queue;
    select from ojs.queue_stats('q-8');
    explain (analyze, buffers, timing off) select from ojs.queue_stats('q-7')});
my ($blocks) = $out =~ /Buffers: shared hit=(\d+)/;
cmp_ok($blocks, '<', 30, 'OP-25: the numbers of one queue read no more blocks for more queues');

# A page of workers reads the leases once, though it also says how many workers there are.
$out = $node->safe_psql('postgres', q{
    select count(ojs.push('growth.job', queue => 'held')) from generate_series(1, 10000) \g /dev/null
    select format('select count(*) from ojs.claim(%L, %L, 100, %L)', 'held', 'w' || i, '1 h')
        from generate_series(1, 40) i \gexec
    vacuum analyze ojs_store.lease;
    select from ojs.http('GET', '/ojs/v1/admin/workers');
    select 'leases=' || relpages from pg_class where oid = 'ojs_store.lease'::regclass;
    explain (analyze, buffers, timing off) select from ojs.http('GET', '/ojs/v1/admin/workers')});
my ($leases) = $out =~ /leases=(\d+)/;
($blocks) = $out =~ /Buffers: shared hit=(\d+)/;
cmp_ok($leases, '>', 50, 'many leases');
cmp_ok($blocks, '<', $leases * 1.5, 'OP-25: a page of workers reads the leases once');

# A list of jobs of a type that there is not looks at the jobs once: that it is empty says how many there are.
$out = $node->safe_psql('postgres', q{
    vacuum analyze ojs_store.job;
    select from ojs.http('GET', '/ojs/v1/admin/jobs?type=none');
    select from ojs.list_jobs(type => 'none');
    explain (analyze, buffers, timing off) select from ojs.list_jobs(type => 'none');
    explain (analyze, buffers, timing off) select from ojs.http('GET', '/ojs/v1/admin/jobs?type=none')});
my ($of_list, $of_page) = $out =~ /Buffers: shared hit=(\d+)/g;
cmp_ok($of_page, '<', $of_list * 1.5, 'OP-25: an empty page of jobs looks at them once');

# What becomes public is measured, or says why not.
my %covered = map { $_ => 1 } split /\n/, `$program --covered`;
my @public = split /\n/, $node->safe_psql('postgres', q{
    select proname from pg_proc where pronamespace = 'ojs'::regnamespace
    union select relname from pg_class where relnamespace = 'ojs'::regnamespace and relkind = 'v'
    order by 1});
is(join(' ', grep { !$covered{$_} } @public), '', 'OP-25: bench/growth measures all that is public');

# Many subtransactions would make the snapshots of all sessions dear.
my ($before, $deleted, $after) = split /\n/, $node->safe_psql('postgres', q{
    select count(ojs.push('growth.job', queue => 'q-1')) from generate_series(1, 300) \g /dev/null
    select ojs.cancel_many('{"queue": "q-1"}', true) \g /dev/null
    select pg_current_xact_id();
    select ojs.delete_many('{"queue": "q-1"}', true) ->> 'succeeded';
    select pg_current_xact_id()});
is($deleted, 300, 'BLK-04: many jobs are deleted');
cmp_ok($after - $before, '<', 50, 'OP-25: and not each by a transaction of its own');
$node->stop;
done_testing();
