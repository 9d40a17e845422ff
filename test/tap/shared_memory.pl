# shared_memory.pl: shared memory is bounded, and shared by databases that know nothing of each other: what happens
# where there is no room, who pays for it, what comes back when a database is dropped, and that ojs.health and
# ojs.metrics say so.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Without the worker, which would look once a minute whether there is room again.
my $node = server('shared_memory', preload => 1, extension => 0,
    conf => "max_connections = 30\nfsync = off\nojs.worker = off\n");
my $in = sub { my ($database, $query) = @_; return $node->safe_psql($database, $query) };
my $use = sub { my ($database, $of, $what) = @_; return $in->($database,
    "select $what from ojs_store.shared_use() where what = '$of'") };
my $metric = sub { my ($database, $line) = @_; return $in->($database,
    "select line from string_to_table(ojs.metrics(), e'\\n') line where line like '$line%'") };
my $push_to_each = sub {
    my ($database, $from, $to) = @_;
    $in->($database, "select count(*) from generate_series($from, $to, 1000) k,
        lateral ojs.push_many((select jsonb_agg(jsonb_build_object('type', 'test.job', 'args', '[]'::jsonb,
            'queue', 'q' || i))
        from generate_series(k, least(k + 999, $to)) i))");
};
$in->('postgres', 'create database model');
$in->('model', 'create extension ojs');
$in->('postgres', "create database $_ template model") for qw(small big);

# --- counters ---
$push_to_each->('small', 1, 10);
is($in->('small', "select sum(available) from ojs.queue_stats()"), 10, 'a small database: ten jobs');
is(health_in('small', 'counting'), 'shared memory', 'which are counted as they come');
is($use->('small', 'counters', 'own'), 10, 'in ten counters');
$push_to_each->('big', 1, 16000);
is(health_in('big', 'counting'), 'shared memory', 'a big one: there is room for 16,000 counters');
is($in->('big', 'select sum(available) from ojs.queue_stats()'), 16000, 'and they are right');
is($use->('big', 'counters', 'own'), 16000, 'as many as there are queues');

# How many buffers a push touches, at best of some: the first ones fill caches, some meet a full page.
my $buffers = sub {
    return $in->('big', q{
        create temp table seen (n int);
        do $$
        declare
            plan json;
        begin
            for i in 1 .. 20 loop
                execute 'explain (analyze, buffers, timing off, format json)
                    select ojs.push(''test.job'', queue => ''q1'')' into plan;
                insert into seen select "Shared Hit Blocks" + "Shared Read Blocks"
                    from json_to_record(plan -> 0 -> 'Plan') as p ("Shared Hit Blocks" int, "Shared Read Blocks" int);
            end loop;
        end $$;
        select min(n) from seen});
};
my $before = $buffers->();
$push_to_each->('big', 16001, 17000);
is(health_in('big', 'counting'), 'rows', 'the database with most queues counts rows, once there is no room');
like($metric->('big', 'ojs_counting_rows '), qr/ 1$/, 'and its metrics say so');
is($use->('big', 'counters', 'own'), 0, 'it has given its counters up');
is($in->('big', 'select sum(available) from ojs.queue_stats()'), 17040 - 20, 'and knows its jobs all the same');
is(health_in('small', 'counting'), 'shared memory', 'the small one has its counters still');
is($use->('small', 'counters', 'own'), 10, 'all of them');
is($in->('small', 'select sum(available) from ojs.queue_stats()'), 10, 'and they are right');
like($metric->('small', 'ojs_counting_rows '), qr/ 0$/, 'as its metrics say');
like($metric->('small', 'ojs_shared_memory_used{of="counters"}'), qr/ 10$/, 'and how many counters are in use');
like($metric->('small', 'ojs_shared_memory_limit{of="counters"}'), qr/ 16384$/, 'of how many');
cmp_ok($buffers->(), '<=', $before, 'a push touches no more than before');
$push_to_each->('small', 11, 20);
is($in->('small', 'select sum(available) from ojs.queue_stats()'), 20, 'new queues of the small one are counted');
is($use->('small', 'counters', 'own'), 20, 'in counters');

# A bound holds without counters, and with them again.
$in->('big', q{select ojs.create_queue('bounded', '{"max_size": 3}')});
$in->('big', q{select ojs.push('test.job', queue => 'bounded') from generate_series(1, 3)});
isnt($node->psql('big', q{select ojs.push('test.job', queue => 'bounded')}), 0, 'a bound holds where rows are counted');

# --- metrics: 1,024 queues are counted, and each database has its share ---
is($use->('small', 'metric_queues', 'used'), 1024, 'all places for metrics are taken');
is($use->('small', 'metric_queues', 'own'), 20, 'some by the small one, which took them of the big one');
is($in->('small', q{select completed_last_hour from ojs.queue_stats('q20')}), '0',
    'a queue with metrics knows its last hour');
is($in->('big', q{select count(*) filter (where completed_last_hour is null) from ojs.queue_stats()}), 17001 - 1004,
    'those without do not: null');
is($in->('big', q{select coalesce(i ->> 'head_seq', 'null') from ojs.queue_info('q8999') i}), 'null',
    'nor the numbers of their jobs');
my $blocks = sub {
    return $in->('big', q{
        create temp table plans (n int);
        do $$ declare plan json; begin
            for i in 1 .. 3 loop
                execute 'explain (analyze, buffers, timing off, format json) select ojs.queue_info(''q8999'')'
                    into plan;
                insert into plans select "Shared Hit Blocks" + "Shared Read Blocks"
                    from json_to_record(plan -> 0 -> 'Plan') as p ("Shared Hit Blocks" int, "Shared Read Blocks" int);
            end loop; end $$;
        select min(n) from plans});
};
my $few = $blocks->();
$in->('big', q{select count(*) from generate_series(1, 5),
    lateral ojs.push_many((select jsonb_agg(jsonb_build_object('type', 'test.job', 'args', '[]'::jsonb,
        'queue', 'ends')) from generate_series(1, 1000)))});
$in->('big', q{select count(*) from ojs.claim('ends', 'w', 1000) c, lateral ojs.ack(c.id)}) for 1 .. 5;
$in->('big', 'vacuum');
cmp_ok($blocks->(), '<=', $few + 60, 'and what it costs to ask does not grow with the jobs that are finished');
# Two hours later every queue is idle.
$in->('big', q{set ojs.clock_offset = '2h'; select ojs.push('test.job', queue => 'new')});
is($in->('big', q{set ojs.clock_offset = '2h'; select completed_last_hour from ojs.queue_stats('new')}), '0',
    'where nothing happened for an hour, a new queue has metrics');

# --- what a dropped database had ---
my @what = qw(databases listener_flags counters metric_queues metric_series);
$in->('postgres', 'drop database big');
awaits($node, q{select (select used from ojs_store.shared_use() where what = 'metric_queues') <= 20},
    'a dropped database gives the places of its metrics back', 'small');
my %at_first = map { $_ => $use->('small', $_, 'used') } @what;
my @databases = map { "d$_" } 1 .. 20;
for my $database (@databases) {
    $in->('postgres', "create database $database template model");
    $in->($database, q{select ojs.create_queue('waits'); select count(*) from ojs.claim('waits',
        'w'); select ojs.push('test.job', queue => 'q'), ojs.queue_stats()});
}
cmp_ok($use->('small', $_, 'used'), '>=', $at_first{$_} + 20, "twenty databases take $_") for @what;
$in->('postgres', "drop database $_") for @databases;
awaits($node, "select used <= $at_first{$_} from ojs_store.shared_use() where what = '$_'",
    "which come back when they are dropped: $_", 'small') for @what;
is($in->('small', 'select sum(available) from ojs.queue_stats()'), 20, 'and nobody else has lost anything');

# --- refused pushes whose events nobody writes down ---
my $refuse = sub {
    my ($database, $n) = @_;
    $in->($database, "select ojs.create_queue('full' || i, '{\"max_size\": 1}'),
        ojs.push('test.job', queue => 'full' || i) from generate_series(1, $n) i");
    $in->($database, "do \$\$ begin for i in 1 .. $n loop begin perform ojs.push('test.job', queue => 'full' || i);
        exception when sqlstate 'OJ601' then null; end; end loop; end \$\$");
};
my $told = sub { my ($database, $type) = @_; return $in->($database,
    "select count(distinct subject) from ojs_store.stored_event where type = 'backpressure.$type'") };
$in->('postgres', 'create database silent template model');
$refuse->('silent', 150);
is($use->('silent', 'refusals', 'own'), 64, 'a database in which nobody ticks takes all places for refusals');
$refuse->('small', 3);
is($use->('small', 'refusals', 'own'), 3, 'and gives them to one that needs some');
$in->('small', 'select ojs.tick()') for 1 .. 2;
is($told->('small', 'rejected'), 3, 'which tells them');
$in->('silent', 'select ojs.tick()') for 1 .. 4;
is($told->('silent', 'warning'), 150, 'of more than 100 queues that are nearly full each is told');
$in->('silent', q{do $$ begin for i in 1 .. 150 loop begin perform ojs.push('test.job',
    queue => 'full' || i); exception when sqlstate 'OJ601' then null; end; end loop; end $$});
$in->('silent', 'select ojs.tick()') for 1 .. 4;
cmp_ok($told->('silent', 'rejected'), '>', 64, 'and the refusals for which there was no place, when they happen again');

# --- notes of a transaction ---
my $grown = $in->('small', q{
    create temp table sizes (n int, bytes bigint);
    do $$ begin
        for i in 1 .. 5000 loop
            begin
                perform ojs.push('test.job', queue => 'q' || 1 + i % 20);
            exception when division_by_zero then null;
            end;
            if i in (500, 5000) then
                insert into sizes select i, sum(total_bytes) from pg_backend_memory_contexts
                    where name = 'TopTransactionContext';
            end if;
        end loop;
    end $$;
    select max(bytes) - min(bytes) from sizes});
cmp_ok($grown, '<=', 262144, 'a loop of 5,000 savepoints with pushes piles nothing up');

# --- claims of many queues ---
my $start = sub {
    my ($queues, $worker) = @_;
    my $session = $node->background_psql('small');
    my $pid = $session->query_safe('select pg_backend_pid()');
    $session->{stdin} .= "select 'got ' || string_agg(id::text, ' ')
        from ojs.claim($queues, '$worker', wait => '60 s');\n";
    $session->{run}->pump_nb;
    awaits($node, "select wait_event = 'OjsClaimWait' or wait_event_type = 'Extension' from pg_stat_activity
        where pid = $pid", "$worker waits", 'small');
    return { session => $session, pid => $pid };
};
my $all = q{array(select 'w' || i from generate_series(1, 20) i)};
$in->('small', "select ojs.create_queue(q) from unnest($all) q");
my %waits = (many => $start->($all, 'many'), few => $start->(q{'{w20}'::text[]}, 'few'));
$in->('small', q{select ojs.push('test.job', queue => 'w20') from generate_series(1, 2)});
for my $who (sort keys %waits) {
    awaits($node, "select state = 'idle' from pg_stat_activity where pid = $waits{$who}{pid}", "$who comes back",
        'small');
}
is($in->('small', q{select string_agg(worker, ' ' order by worker) from ojs.leases where worker in ('many', 'few')}),
    'few many', 'each has a job');
eval { $_->{session}->quit } for values %waits;

# --- room again ---
$push_to_each->('silent', 1, 16500);
is(health_in('silent', 'counting'), 'rows', 'another database is too big');
$in->('silent', 'drop extension ojs cascade');
$in->('silent', 'create extension ojs');
$in->('silent', q{select ojs.push('test.job', queue => 'q')});
$node->append_conf('postgresql.conf', "ojs.worker = on\n");
$node->reload;
awaits($node, q{select ojs.health() ->> 'counting' = 'shared memory'},
    'where there is room again, the worker goes back to counters', 'silent');
is($in->('silent', 'select sum(available) from ojs.queue_stats()'), 1, 'which are right');
unlike(slurp_file($node->logfile), qr/has corrected its counters/, 'no counter had to be corrected');
$node->stop;
done_testing();

sub health_in { my ($database, $path) = @_; return $in->($database, "select ojs.health() #>> '{$path}'") }
