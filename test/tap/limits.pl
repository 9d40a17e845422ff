# limits.pl: sixteen claimers under a concurrency limit of three, some of them killed now and then: never more than
# three jobs are held, and never is there a free place and a job that nobody gets: RL-01, WRK-13, INT-04.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use IPC::Run ();
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $jobs = 6000;
my $claimers = 16;
my $seed = $ENV{SEED} // int(rand(2**31));
srand $seed;
note "seed $seed";

for my $preload (0, 1) {
    my $as = $preload ? 'with the worker' : 'without preload';
    my $node = server("limits$preload", preload => $preload, conf => "fsync = off\nmax_connections = 60\n");
    $node->safe_psql('postgres', q{
        create table seen (held int, at timestamptz default clock_timestamp());
        create procedure work(worker text, total int) language plpgsql as $$
        declare
            ids uuid[];
            tokens text[];
        begin
            loop
                select array_agg(id), array_agg(lease_id) into ids, tokens
                from ojs.claim('limited', worker, 1 + (random() * 4)::int, lease => '500 ms', wait => '100 ms');
                commit;
                insert into seen (held) select count(*) from ojs.leases;
                commit;
                if ids is not null then
                    perform ojs.ack_many(worker, ids, lease_ids => tokens);
                    commit;
                end if;
                exit when total <= (select count(*) from ojs_store.finished);
            end loop;
        end $$;
    });
    $node->safe_psql('postgres', qq{
        select count(*) from generate_series(1, $jobs) i, lateral ojs.push('test.job', jsonb_build_array(i),
            queue => 'limited',
            retry => '{"max_attempts": 1000}', options => '{"rate_limit": {"key": "api", "concurrency": 3}}')});

    my $start = sub {
        my ($n) = @_;
        my %run = (n => $n, out => '', err => '');
        $run{handle} = IPC::Run::start(['psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'),
            '-c',
                "set application_name = 'claimer $n'", '-c', "call work('w$n', $jobs)"], '<', \undef, '>', \$run{out},
                '2>', \$run{err}, IPC::Run::timer(180));
        return \%run;
    };
    my @runs = map { $start->($_) } 1 .. $claimers;
    my ($killed, $restarted, $unexpected, $until) = (0, 0, '', time + 150);
    awaits($node, q{select exists (select from pg_stat_activity where application_name like 'claimer %')},
        'claimers work');
    do {
        my $victim = $node->safe_psql('postgres', q{select v.application_name from (select pid, application_name
            from pg_stat_activity where application_name like 'claimer %' order by random() limit 1) v
            where pg_terminate_backend(v.pid)});
        $killed++ if $victim;
        for my $run (@runs) {
            # An end is noticed only by reading; that of the victim is certain.
            eval { $run->{handle}->pump_nb };
            next if $run->{handle}->pumpable && $victim ne "claimer $run->{n}";
            eval { $run->{handle}->finish };
            $unexpected .= $run->{err} if $run->{err} !~ /terminating connection|^$|server closed/;
            $run = $start->($run->{n});
            $restarted++;
        }
    } while (time < $until && $node->safe_psql('postgres', 'select count(*) from ojs_store.finished') < $jobs);
    for my $run (@runs) {
        eval { $run->{handle}->finish };
        $unexpected .= $run->{err} if $run->{err} !~ /terminating connection|^$|server closed/;
    }
    is($node->safe_psql('postgres', 'select count(*), count(distinct job_id) from ojs_store.finished where state = 4'),
        "$jobs|$jobs", "RL-01: all jobs are done, $as; $killed claimers were killed, $restarted started again");
    cmp_ok($restarted, '>', 0, 'the test did kill some, and others came');
    is($unexpected, '', 'RL-01: nobody saw another error');
    my ($most, $looks) = split /\|/, $node->safe_psql('postgres', 'select max(held), count(*) from seen');
    is($most, 3, "RL-01: never more than three were held, at $looks looks, $as");
    cmp_ok($node->safe_psql('postgres', 'select count(*) from seen where held = 3'), '>', 10, 'RL-01: and often three');
    is($node->safe_psql('postgres', 'select deadlocks from pg_stat_database where datname = current_database()'), 0,
        'without a deadlock');

    # Who waits gets the place that is freed.
    $node->safe_psql('postgres', q{select count(*) from generate_series(1, 2) i,
        lateral ojs.push('test.job', jsonb_build_array(i), queue => 'one',
        options => '{"rate_limit": {"concurrency": 1}}')});
    my $held = $node->safe_psql('postgres', q{select id from ojs.claim('one', 'first')});
    my ($out, $err) = ('', '');
    my $waiter = IPC::Run::start(['psql', '-XAtq', '-d', $node->connstr('postgres'), '-c',
        "set application_name = 'waiter'", '-c', q{select count(*) from ojs.claim('one', 'second', wait => '30 s')}],
        '<', \undef, '>', \$out, '2>', \$err, IPC::Run::timer(60));
    awaits($node, q{select count(*) = 1 from pg_stat_activity where application_name = 'waiter'
        and query like '%ojs.claim%' and state = 'active'}, 'a claim waits');
    is($node->safe_psql('postgres', q{select count(*) from ojs.claim('one', 'third')}), 0,
        'RL-01: for a place that is taken');
    $node->safe_psql('postgres', "select (ojs.ack('$held')).state");
    $waiter->finish;
    is($out, "1\n", "RL-01: it gets the job when the place is free, $as");
    cmp_ok($node->safe_psql('postgres',
        "select extract(epoch from (select claimed_at from ojs.leases where worker = 'second')
            - (select completed_at from ojs.jobs where id = '$held'))"),
        '<', 15, 'RL-01: soon, not when its time is over');
    $node->stop;
}
done_testing();
