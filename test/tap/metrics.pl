# metrics.pl: the figures in shared memory against the rows: OBS-02, QC-06; and that the log keeps what is in jobs to
# itself: OBS-03. Many sessions push, claim, ack, fail, give back and cancel jobs, in transactions and savepoints that
# are rolled back at random. None of them removes a row, so what commits have added up must be what the rows say.
#
# OJS_STRESS_SEED repeats a run.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use IPC::Run ();
use Time::HiRes 'time';

my $seed = $ENV{OJS_STRESS_SEED} // time * 1000 % 2**31;
srand($seed);
note "OJS_STRESS_SEED=$seed";
my ($sessions, $steps) = (6, 60);

# No lease runs out by itself: the figures and the rows are read one after the other.
my $node = server('metrics', preload => 1,
    conf => "max_connections = 40\nfsync = off\nlog_min_messages = info\nlog_statement = none\n"
        . "ojs.tick_interval = 20ms\nojs.default_lease = 1h\n");
$node->safe_psql('postgres', q{
    create function one_step(me text) returns void language plpgsql as $$
    declare
        queue text := 'q' || floor(random() * 3);
        kind text := 'secret.t' || floor(random() * 4);
        held uuid;
    begin
        select l.job_id into held from ojs.leases l where worker = me limit 1;
        case floor(random() * 9)
        when 0, 1 then perform ojs.push(kind, '["SECRET"]', queue => queue, meta => '{"m": "SECRET"}',
            retry => '{"max_attempts": 2, "initial_interval": "PT0.01S"}');
        when 2 then perform ojs.push_many((select jsonb_agg(jsonb_build_object('type', 'secret.t' || i % 4, 'args',
            '["SECRET"]'::jsonb, 'queue', queue)) from generate_series(1, 20) i));
        when 3, 4 then perform ojs.claim(queue, me, 3);
        when 5 then if held is not null then perform ojs.ack(held, '"SECRET"'); end if;
        when 6 then perform ojs.ack_many(me,
            (select array_agg(job_id) from (select l.job_id from ojs.leases l where worker = me limit 3) x));
        when 7 then if held is not null then perform ojs.fail(held, '{"type": "t", "message": "SECRET"}'); end if;
        when 8 then
            if random() < 0.5 and held is not null then perform ojs.nack(held);
            else perform ojs.cancel(j.id, true) from (select id from ojs_store.job order by random() limit 1) j; end if;
        end case;
    exception when others then
        if sqlstate not like 'OJ%' then raise; end if;
    end $$;
    create procedure steps(me text, steps int) language plpgsql as $$
    begin
        for i in 1 .. steps loop
            for k in 1 .. 1 + floor(random() * 4) loop
                perform one_step(me);
                if random() < 0.2 then
                    begin
                        perform one_step(me);
                        perform one_step(me);
                        raise exception 'back';
                    exception when raise_exception then null;
                    end;
                end if;
            end loop;
            if random() < 0.3 then rollback; else commit; end if;
        end loop;
    end $$;
    create view counted as select queue, type, cells, sums from ojs_store.shared_metrics() order by 1, 2;
    create view kept as select queue, type, cells, sums from ojs_store.metrics_of_rows() order by 1, 2;
    create view hour as select queue, completed_last_hour, failed_last_hour, avg_duration_ms from ojs.queue_stats();
});

sub run_all {
    my ($name) = @_;
    my @runs = map {
        my %run = (err => '');
        my $s = rand() * 2 - 1;
        $run{handle} = IPC::Run::start(['psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'),
            '-c',
            "select setseed($s)", '-c', "call steps('w$_', $steps)"], '<', \undef, '>', \my $out, '2>', \$run{err},
            IPC::Run::timer(180));
        \%run;
    } 1 .. $sessions;
    for my $run (@runs) { $run->{handle}->finish; is($run->{err}, '', "$name: a session ends without an error"); }
}
sub is_what_rows_say {
    my ($name) = @_;
    my $kept = $node->safe_psql('postgres', 'table kept');
    is($node->safe_psql('postgres', 'table counted'), $kept, $name);
    return $kept;
}

$node->safe_psql('postgres', q{select ojs.create_queue('q' || i) from generate_series(0, 2) i});
run_all('OBS-02');
like(is_what_rows_say('OBS-02: after random operations and rollbacks the figures are what the rows say'),
    qr/^-?\d+\|secret\.t\d\|\{[1-9]/m, 'and there is something');

my $pushed = sub { $node->safe_psql('postgres', q{select sum(cells[1]) from ojs_store.shared_metrics()}) };
my $before = $pushed->();
$node->safe_psql('postgres', q{begin; select from ojs.push('a.b',
    queue => 'q0'); prepare transaction 'p'; commit prepared 'p'});
is($pushed->(), $before, 'OBS-02: a prepared transaction does not count');

# What was handed out in the last minute, at a time of its own: two jobs that had waited for 5 s, and one of them again.
$node->safe_psql('postgres', q{
    set ojs.clock_offset = '1d';
    select count(ojs.push('a.b', queue => 'minute')) from generate_series(1, 2);
    set ojs.clock_offset = 86405000;
    create temp table held as select id from ojs.claim('minute', 'w', 2);
    select from (select id from held limit 1) one, ojs.nack(one.id);
    select from ojs.claim('minute', 'w')});
my $minute = q{select concat_ws(' ', dispatch_count_1m, avg_wait_ms between 5000 and 9999, active_jobs)
    from ojs.scheduling_stats() where queue = 'minute'};
is($node->safe_psql('postgres', "set ojs.clock_offset = 86405000; $minute"), '3 t 2',
    'FS-02: commits add to what was handed out in the last minute, and how long it had waited');
is($node->safe_psql('postgres', "set ojs.clock_offset = 86535000; $minute"), '0 2', 'FS-02: and no longer');

# A restart begins anew; the last hour remains, learned from the rows.
my $hour = $node->safe_psql('postgres', 'table hour');
like($hour, qr/^q0\|[1-9]/m, 'QC-06: something was finished in the last hour');
$node->restart;
is($node->safe_psql('postgres', 'table counted'), '', 'OBS-02: a restart sets the counters back');
is($node->safe_psql('postgres', 'table hour'), $hour, 'QC-06: and the last hour is what it was');
$node->safe_psql('postgres',
    q{select ojs.ack(id) from (select id from ojs.push('a.b',
    queue => 'q9') limit 1) p where false; select from ojs.push('a.b', queue => 'q9')});
is($node->safe_psql('postgres', q{select cells[1] from ojs_store.shared_metrics() where type = 'a.b'}), 1,
    'OBS-02: and they count from there');
$node->stop('immediate');
$node->start;
is($node->safe_psql('postgres', q{select queue, completed_last_hour from hour where queue <> 'q9'}),
    $hour =~ s/^(\w+\|\d+).*/$1/gmr, 'QC-06: after a crash, too');

# What a lease says of a series before a restart means nothing after it.
$node->safe_psql('postgres', q{select from ojs.push('old.type', queue => 'lease'); select from ojs.claim('lease',
    'me')});
$node->restart;
$node->safe_psql('postgres', q{select from ojs.push('new.type',
    queue => 'lease'); select from ojs.ack((select job_id from ojs.leases where queue = 'lease'))});
is($node->safe_psql('postgres',
    q{select string_agg(type || ' ' || cells[1] || ' ' || (select sum(n) from unnest(cells[18:34]) n),
    ', ' order by type) from ojs_store.shared_metrics()}),
    'new.type 1 0, old.type 0 1', 'OBS-02: a lease that outlives a restart is counted by its job');

# A queue of which only the numbers are known so far: the look at another one has found them.
$node->restart;
is($node->safe_psql('postgres', q{
    select from ojs.queue_info('lease');
    begin;
    create temp table pushed as select seq from ojs.push('a.b', queue => 'q9');
    select (ojs.queue_info('q9') ->> 'head_seq')::bigint - seq from pushed;
    rollback;
    create temp table pushed as select seq from ojs.push('a.b', queue => 'q0');
    select (ojs.queue_info('q0') ->> 'head_seq')::bigint - seq from pushed;
}) =~ s/\s+/ /gr, '0 0', 'Q-57: what was pushed since is the last number, whoever pushed it');

# The extension anew; and one that is only said to go.
$node->safe_psql('postgres', q{begin; drop extension ojs cascade; create extension ojs; select from ojs.push('a.b',
    queue => 'lease'); rollback});
$node->safe_psql('postgres', q{select from ojs.push('a.b', queue => 'lease')});
is($node->safe_psql('postgres', q{select sum(cells[1]) from ojs_store.shared_metrics() where type = 'a.b'}), 1,
    'OBS-02: counting goes on after a DROP EXTENSION that was rolled back');
$node->safe_psql('postgres', q{
    select from ojs.claim('lease', 'me');
    drop extension ojs cascade; create extension ojs});
is($node->safe_psql('postgres', 'select count(*) from ojs_store.shared_metrics()'), 0,
    'OBS-02: a new extension begins at nothing');
is($node->safe_psql('postgres', q{
    select from ojs.push('a.b', queue => 'after') \g /dev/null
    select dispatch_count_1m from ojs.scheduling_stats()}), 0, 'FS-02: and so does the last minute');
$node->safe_psql('postgres', 'drop extension ojs cascade; create extension ojs; create database other');
$node->safe_psql('other', q{create extension ojs; select from ojs.push('a.b', queue => 'lease')});
is($node->safe_psql('postgres', 'select count(*) from ojs_store.shared_metrics()'), 0,
    'OBS-02: each database has its own');
$node->safe_psql('other', q{select count(ojs.push('a.b', queue => 'n' || i)) from generate_series(1, 1100) i});
$node->safe_psql('postgres', q{select from ojs.push('a.b', queue => 'mine')});
is($node->safe_psql('postgres', 'select count(*) from ojs_store.shared_metrics()'), 1,
    'OBS-02: none takes all the room there is');

my $log = slurp_file($node->logfile);
unlike($log, qr/SECRET/, 'OBS-03: at INFO the log holds no arguments, results, meta or messages of jobs');
$node->stop;
done_testing();
