# fair_tenants.pl: what a claim of all tenants' parts of a queue costs, in pages, beside one of a plain queue: FS-03.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use List::Util qw(min);
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;

my $parts = 1000;
my $node = server('fair_tenants', preload => 1, conf => "fsync = off\njit = off\nojs.worker = off\n");
$node->safe_psql('postgres', 'alter database postgres set ojs.tenancy = optional');

# Pages that each of these claims touches, in one session that has claimed before, and the jobs that they got in all.
sub pages {
    my ($claim, $times, $before_each) = @_;
    my $explain = "explain (analyze, buffers, costs off, timing off, summary off, format json) select from $claim;\n";
    my $out = $node->safe_psql('postgres', $explain x 3 . "\\echo measured\n" . "$before_each$explain" x $times);
    my @plans = split /^\[/m, (split /^measured$/m, $out)[1];
    shift @plans;
    my (@pages, $jobs);
    for (@plans) {
        my ($hit) = /"Shared Hit Blocks": (\d+)/;
        my ($read) = /"Shared Read Blocks": (\d+)/;
        push @pages, $hit + $read;
        $jobs += (/"Actual Rows": (\d+)/)[0];
    }
    note "$claim: pages @pages, $jobs jobs";
    return (min(@pages), $jobs);
}

# Five tenants have many jobs; the others had some that are claimed and acknowledged, so their entries are dead.
$node->safe_psql('postgres', qq{
    select count(*) from generate_series(1, $parts) n, generate_series(1, 2) i,
        lateral ojs.push('t', to_jsonb(array[i]), queue => 'fair', meta => jsonb_build_object('tenant_id', 't' || n));
    do \$\$ begin
        for i in 1 .. 2 loop
            perform ojs.ack_many('w', array(select id from ojs.claim('fair\@*', 'w', 1000)));
            perform count(*) from generate_series(1, $parts) n, ojs.claim('fair\@t' || n, 'x');
            commit;
            perform ojs.ack_many('x', array(select job_id from ojs.leases));
        end loop;
    end \$\$;
    select count(*) from generate_series(1, 5000) n,
        lateral ojs.push('t', to_jsonb(array[n]), queue => 'fair',
            meta => jsonb_build_object('tenant_id', 't' || (n % 5 + 100))) a,
        lateral ojs.push('t', to_jsonb(array[n]), queue => 'plain') b;
});
is($node->safe_psql('postgres', q{select count(*) from ojs.leases}), 0, 'all others are done with theirs');

for my $max (1, 16, 50) {
    my ($plain, $of_plain) = pages("ojs.claim('plain', 'w', $max, lease => '1 hour')", 20, '');
    my ($fair, $of_fair) = pages("ojs.claim('fair\@*', 'w', $max, lease => '1 hour')", 20, '');
    is($of_fair, 20 * $max, "FS-03: claims of $max get them");
    cmp_ok($fair, '<=', 1.3 * $plain, "FS-03: and touch at most 1.3 times the pages of a plain queue: $fair, $plain");
}

# A claim that looks which parts have jobs.
my ($plain) = pages("ojs.claim('plain', 'w', lease => '1 hour')", 3, '');
my ($looking) = pages("ojs.claim('fair\@*', 'w', lease => '1 hour')", 3, "select pg_sleep(0.3) \\g /dev/null\n");
cmp_ok($looking, '<=', $plain + 100, "FS-03: a look at $parts parts touches few pages: $looking, $plain without");

# One that finds nothing.
$node->safe_psql('postgres', q{
    do $$ begin
        while exists (select from ojs.claim('fair@*', 'w', 1000, lease => '1 hour')) loop end loop;
        while exists (select from ojs.claim('plain', 'w', 1000, lease => '1 hour')) loop end loop;
    end $$;
    vacuum ojs_store.ready});
my ($none) = pages("ojs.claim('plain', 'w')", 5, '');
my ($none_fair, $got) = pages("ojs.claim('fair\@*', 'w')", 5, '');
is($got, 0, 'FS-03: no part has jobs');
cmp_ok($none_fair, '<=', 1.3 * $none, "FS-03: a claim that gets nothing looks at no part by itself: $none_fair, $none");

# The last of very many parts gives at once what it has, also to a session that has just looked.
my $session = $node->background_psql('postgres');
is($session->query_safe(q{select count(*) from ojs.claim('fair@*', 'w')}), 0, 'FS-03: nothing yet');
$node->safe_psql('postgres', q{select count(*) from generate_series(1, 1500) n,
    lateral ojs.push('t', queue => 'many', meta => jsonb_build_object('tenant_id', 't' || n));
    do $$ begin while exists (select from ojs.claim('many@*', 'w', 1000, lease => '1 hour')) loop end loop; end $$});
is($session->query_safe(q{select count(*) from ojs.claim('many@*', 'w')}), 0, 'FS-03: nor of the others');
$node->safe_psql('postgres', q{select ojs.push('t', queue => 'many', meta => jsonb_build_object('tenant_id', 't' || n))
    from unnest(array[1, 777, 1500, 1501]) n});
is($session->query_safe(q{select string_agg(meta ->> 'tenant_id', ' ' order by meta ->> 'tenant_id')
    from ojs.claim('many@*', 'w', 10)}), 't1 t1500 t1501 t777', 'FS-03: each of 1,501 parts, and a new one, at once');

# The first look of a session does not read what one tenant has very many of.
$node->safe_psql('postgres', q{
    select count(*) from generate_series(1, 20000) n, lateral ojs.push('t', to_jsonb(array[n]), queue => 'deep',
        meta => '{"tenant_id": "flood"}');
    select count(*) from generate_series(1, 40) n, lateral ojs.push('t', to_jsonb(array[n]), queue => 'flat',
        meta => '{"tenant_id": "flood"}')});
my ($deep, $flat) = map {
    my ($hit) = $node->safe_psql('postgres', "explain (analyze, buffers, costs off)
        select from ojs.claim('$_\@*', 'w', lease => '1 hour')") =~ /Buffers: shared hit=(\d+)/;
    $hit } qw(deep flat);
cmp_ok($deep, '<=', $flat + 60, "FS-03: a first look touches $deep pages beside 20,000 jobs, $flat beside 40");

# Where no queue has a limit, the list of limits does not work out the settings of each.
$node->safe_psql('postgres', 'vacuum analyze ojs_store.queue');
my $plan = $node->safe_psql('postgres', q{select from ojs.rate_limits;
    explain (analyze, buffers, costs off) select from ojs.rate_limits});
my ($of_limits) = $plan =~ /Buffers: shared hit=(\d+)/;
cmp_ok($of_limits, '<', 1000, "RL-01: 3,500 parts without limits cost $of_limits pages");
is($node->safe_psql('postgres', q{select ojs.configure_queue('fair', '{"concurrency": 7}') \g /dev/null
    select count(*), min(concurrency) from ojs.rate_limits;
    select ojs.configure_queue('fair', '{"concurrency": null}') \g /dev/null}), "1001|7",
    'RL-01: parts have the limit of their queue');

# With shared counters and the news of commits: who has just got jobs, and had none, goes before those with many.
$node->safe_psql('postgres', q{
    select count(*) from generate_series(1, 60) n, generate_series(1, 50) i,
        lateral ojs.push('t', to_jsonb(array[i]), queue => 'busy', meta => jsonb_build_object('tenant_id', 'b' || n))});
my $one = q{select coalesce(min(meta ->> 'tenant_id'), '-') from ojs.claim('busy@*', 'w', lease => '1 hour')};
like($session->query_safe($one), qr/^b/, 'FS-03: a session knows the parts with jobs');
$node->safe_psql('postgres', q{select ojs.push('t', queue => 'busy', meta => '{"tenant_id": "late"}')});
is($session->query_safe($one), 'late', 'FS-03: a tenant that had no job gets the next claim');
like($session->query_safe($one), qr/^b/, 'FS-03: and those with many jobs those after it');
$node->safe_psql('postgres', q{select ojs.set_tenant('b1', '{"fairness_weight": 1000000}')});
is($session->query_safe($one), 'b1', 'FS-03: a weight counts at once');
$node->safe_psql('postgres', q{
    select count(*) from generate_series(1, 32) n,
        lateral ojs.push('t', queue => 'busy', meta => jsonb_build_object('tenant_id', 'n' || n))});
my $turns = join '', map { substr $session->query_safe($one), 0, 1 } 1 .. 32;
like($turns, qr/^n{15}bn{15}b$/, "FS-03: now and then one with many jobs comes before new ones: $turns");
$node->safe_psql('postgres', q{
    begin;
    select ojs.push('t', queue => 'busy', meta => '{"tenant_id": "prepared"}');
    prepare transaction 'push';
    commit prepared 'push'});
$node->safe_psql('postgres', q{do $$ declare tenants text[]; begin
    for i in 1 .. 100 loop
        select array_agg(meta ->> 'tenant_id') into tenants from ojs.claim('busy@*', 'w', 10, lease => '1 hour');
        if 'prepared' = any (tenants) then return; end if;
        commit;
    end loop;
    raise 'not in 1,000 jobs';
end $$});
$session->quit;
$node->stop;
done_testing();
