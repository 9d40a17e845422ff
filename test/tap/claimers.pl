# claimers.pl: eight claimers at once on 100,000 jobs: each job is done once, nobody fails, and each claimer gets its
# jobs in claim order: OP-05, OP-06, Q-27, R-29.
use strict;
use warnings;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use IPC::Run ();
use Time::HiRes 'time';

my $jobs = 100_000;
my $node = PostgreSQL::Test::Cluster->new('claimers');
$node->init;
$node->append_conf('postgresql.conf', "fsync = off\nmax_connections = 40");
$node->start;
$node->safe_psql('postgres', q{
    create extension ojs;
    create table taken (worker text, turn bigint generated always as identity, job_id uuid, seq bigint, priority int,
        attempt int);

    -- Claims, notes what it got in the same transaction, and finishes it in the next.
    create procedure work(worker text, size int) language plpgsql as $$
    declare
        ids uuid[];
    begin
        -- All begin together.
        perform pg_advisory_lock_shared(1);
        commit;
        loop
            with claimed as (select * from ojs.claim('all', work.worker, size) with ordinality),
                noted as (insert into taken (worker, job_id, seq, priority, attempt)
                    select work.worker, id, seq, priority, attempt from claimed order by ordinality returning job_id)
            select array_agg(job_id) into ids from noted;
            commit;
            exit when ids is null;
            perform ojs.ack_many(work.worker, ids);
            commit;
        end loop;
    end $$;
});
$node->safe_psql('postgres', qq{
    select count(*) from generate_series(1,
        $jobs / 10000) batch, lateral ojs.push_many((select jsonb_agg(jsonb_build_object(
        'type', 'test.job', 'args', jsonb_build_array(batch,
            n), 'queue', 'all', 'priority', (n * 7919 + batch) % 3 - 1)) from generate_series(1, 10000) n));
});
is($node->safe_psql('postgres', q{select count(*) from ojs_store.ready}), $jobs, "OP-03: $jobs jobs are ready");

my $gate = $node->background_psql('postgres');
$gate->query_safe('select pg_advisory_lock(1)');
my @sizes = (1, 3, 10, 25, 50, 100, 100, 200);
my @runs = map {
    my %run = (out => '', err => '', worker => "w$_");
    $run{handle} = IPC::Run::start(['psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'), '-c',
        "call work('w$_', $sizes[$_])"],
        '<', \undef, '>', \$run{out}, '2>', \$run{err});
    \%run;
} 0 .. $#sizes;
$node->poll_query_until('postgres', "select count(*) = 8 from pg_stat_activity where wait_event = 'advisory'") or die;
my $start = time;
$gate->quit;
for my $run (@runs) { $run->{handle}->finish; is($run->{err}, '',
    "OP-05: claimer $run->{worker} ends without an error"); }
note sprintf('%d jobs claimed and finished in %.1f s', $jobs, time - $start);

is($node->safe_psql('postgres', q{select count(*) || '/' || count(distinct job_id) from taken}), "$jobs/$jobs",
    'OP-05 Q-27: every job was handed out, to one claimer only');
is($node->safe_psql('postgres',
    q{select count(*) from ojs_store.finished where state = 4 and attempt = 1 and deliveries = 1}), $jobs,
    'OP-05: every job was done once, at its first attempt');
is($node->safe_psql('postgres',
    q{select count(*) from ojs_store.ready union all select count(*) from ojs_store.lease}), "0\n0",
    'OP-05: nothing is left over');
is($node->safe_psql('postgres',
    q{select count(*) from (
        select priority > lag(priority) over w or (priority = lag(priority) over w and seq <= lag(seq) over w) as wrong
        from taken window w as (partition by worker order by turn)) x where wrong}), 0,
    'OP-06 R-29: each claimer got its jobs in claim order');
cmp_ok($node->safe_psql('postgres', q{select count(distinct worker) from taken}), '>=', 6,
    'Q-27: and they shared the work');
is($node->safe_psql('postgres', q{select deadlocks from pg_stat_database where datname = 'postgres'}), 0,
    'OP-05: without a deadlock');
$node->stop;
done_testing();
