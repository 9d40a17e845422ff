# scale.pl: what many sessions and many finished jobs must not change: ENV-02, ENV-04, OP-25, PGX-05, PGX-16.
use strict;
use warnings;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use IPC::Run ();

my $node = PostgreSQL::Test::Cluster->new('scale');
$node->init;
$node->append_conf('postgresql.conf', "fsync = off\nmax_connections = 40");
$node->start;
$node->safe_psql('postgres', 'create extension ojs');

# All at once: the same commands in several sessions; returns their outputs.
sub together
{
    my ($n, $sql, @options) = @_;
    my @runs = map {
        my %run = (out => '', err => '');
        (my $own = $sql) =~ s/%d/$_/g;
        $run{handle} = IPC::Run::start(['psql', '-XAtq', @options, '-d', $node->connstr('postgres')], '<', \$own, '>',
            \$run{out}, '2>', \$run{err}, IPC::Run::timer(60));
        \%run;
    } 1 .. $n;
    $_->{handle}->finish for @runs;
    return @runs;
}

# ENV-02
my @ids = map { split /\n/, $_->{out} } together(6,
    q{select p.id from generate_series(1, 2000) n,
    lateral ojs.push('test.job', to_jsonb(array[n]), queue => 'ids') p;});
my %seen;
is(scalar(@ids), 12_000, 'ENV-02: six sessions push 2,000 jobs each');
is(scalar(grep { $seen{$_}++ } @ids), 0, 'ENV-02: ids are unique across sessions');

# ENV-04: the same ids, in opposite orders, in batches and alone.
$node->safe_psql('postgres', q{create table ids as select n,
    overlay(gen_random_uuid()::text placing '7' from 15 for 1)::uuid as id,
    overlay(gen_random_uuid()::text placing '7' from 15 for 1)::uuid as batch_id from generate_series(1, 50) n});
my @replies = together(6, q{
    do $$
    declare
        got int := 0; name uuid;
    begin
        for name in select id from ids order by case when %d % 2 = 0 then n else -n end loop
            begin
                perform ojs.push('test.job', queue => 'same', id => name);
                got := got + 1;
            exception when sqlstate 'OJ301' then null;
            end;
            commit;
        end loop;
        raise notice 'got %', got;
    end $$;});
is(join('', grep { /ERROR/ } map { $_->{err} } @replies), '',
    'ENV-04: the loser of a race for an id gets DUPLICATE_JOB, nothing else');
my $got = 0;
$got += $_ for map { $_->{err} =~ /got (\d+)/ ? $1 : 0 } @replies;
is($got, 50, 'ENV-04: each id was pushed once');
is($node->safe_psql('postgres', q{select count(*) || '/' || count(distinct id) from ojs.jobs where queue = 'same'}),
    '50/50', 'ENV-04: and is there once');
@replies = together(4,
    q{select count(*) from ojs.push_many((select jsonb_agg(jsonb_build_object('type', 't', 'args', '[]'::jsonb,
    'queue', 'batch',
    'id', batch_id) order by case when %d % 2 = 0 then n else -n end) from ids));});
is(join(' ', sort map {
    $_->{out} =~ /(\d+)/ ? $1 : $_->{err} =~ /exists already|holds two/ ? 'duplicate' : $_->{err}
} @replies), '50 duplicate duplicate duplicate',
    'ENV-04: of batches with the same ids in opposite orders one wins, with no deadlock');

# OP-25: with 100,000 finished jobs, a call touches as many pages as with none.
sub pages
{
    my ($sql) = @_;
    my $plan = $node->safe_psql('postgres', qq{begin; explain (analyze, buffers, costs off,
        timing off) $sql; rollback;});
    my ($top) = $plan =~ /Buffers: ([^\n]*)/;
    my $sum = 0;
    $sum += $1 while ($top // '') =~ /(?:hit|read)=(\d+)/g;
    return $sum;
}
my @calls = (
    [push => q{select ojs.push('test.job', queue => 'big')}],
    [claim => q{select ojs.claim('big', 'w')}],
    [ack => q{select ojs.ack((select job_id from ojs_store.lease where worker = 'keeper' limit 1))}],
    [fail => q{select ojs.fail((select job_id from ojs_store.lease where worker = 'keeper' limit 1),
        '{"type": "t", "message": "m"}')}],
    [info => q{select ojs.info((select job_id from ojs_store.lease where worker = 'keeper' limit 1))}],
    [tick => q{select ojs.tick()}]);
$node->safe_psql('postgres', q{select ojs.push('test.job', queue => 'big') from generate_series(1,
    20); select ojs.claim('big', 'keeper', 3, '24 h')});
my %before = map { $_->[0] => pages($_->[1]) } @calls;
$node->safe_psql('postgres', q{
    do $$
    begin
        for batch in 1..10 loop
            perform ojs.push_many((select jsonb_agg(jsonb_build_object('type', 't', 'args', '[]'::jsonb, 'queue',
                'big', 'priority', 1)) from generate_series(1, 10000)));
            commit;
            for part in 1..10 loop
                perform ojs.ack_many('w', (select array_agg(id) from ojs.claim('big', 'w', 1000)));
                commit;
            end loop;
        end loop;
    end $$;
    vacuum ojs_store.ready; vacuum ojs_store.lease;});
is($node->safe_psql('postgres', q{select count(*) from ojs_store.finished}), 100_000,
    'OP-25: 100,000 jobs were finished');
for (@calls)
{
    my ($name, $sql) = @$_;
    my $after = pages($sql);
    note "$name: $before{$name} pages, then $after";
    # A tick may sweep a stretch of finished jobs for retention: 512 pages, however many there are.
    my $stretch = $name eq 'tick' ? 512 : 0;
    cmp_ok($after, '<=', $before{$name} + 40 + $stretch, "OP-25: $name touches no more pages for it");
}

# PGX-05: ticks at once share the work and repeat none of it.
$node->safe_psql('postgres',
    q{select ojs.push_many((select jsonb_agg(jsonb_build_object('type', 't', 'args', '[]'::jsonb, 'queue', 'ticks',
    'options', '{"delay_until": "+PT1M"}'::jsonb))
    from generate_series(1, 5000)))});
@replies = together(5,
    q{set ojs.clock_offset = '2 min'; select (ojs.tick(100) ->> 'promoted')::int from generate_series(1, 30);});
my $promoted = 0;
$promoted += $_ for map { split /\n/, $_->{out} } @replies;
is(join('', map { $_->{err} } @replies), '', 'PGX-05: five sessions tick at once without an error');
my $ready = $node->safe_psql('postgres',
    q{select count(*) from ojs_store.ready r join ojs.jobs j on j.id = r.job_id where j.queue = 'ticks'});
is($promoted, $ready, 'PGX-05: what they report is what was done');
is($node->safe_psql('postgres',
    q{select count(*) from (select job_id from ojs_store.ready
        union all select job_id from ojs_store.delayed where kind <> 5) x group by job_id having count(*) > 1}), '',
    'PGX-05: no job was promoted twice');
$node->stop;
done_testing();
