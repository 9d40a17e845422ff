# The memory of a session and of a worker: what they hold after many calls is what they held after some.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;

# More rounds by hand: ROUNDS=40000 test/run memory
my $rounds = $ENV{ROUNDS} // 2000;
my $node = server('memory', preload => 1, conf => "ojs.tick_interval = '10 ms'\nshared_buffers = '8MB'\n");
my $worker = worker_pid($node);

# What one client does with its jobs, a transaction each: so that a leak of eight bytes per round shows.
sub grown {
    my ($body) = @_;
    my $held = q{select sum(used_bytes) from pg_backend_memory_contexts;};
    my $loop = sub { "do \$do\$ declare c ojs.claimed_job; id uuid; r record;
        begin for i in 1 .. $_[0] loop $body commit; end loop; end \$do\$;" };
    my ($before, $after) = split /\n/, $node->safe_psql('postgres',
        join("\n", $held =~ s/.*/$loop->(300)/er, $held, $loop->($rounds), $held));
    note("$before bytes, then $after");
    return $after - $before;
}

my %rounds = (
    'push, claim, extend, info and ack' => q{
        perform ojs.push('a.b', queue => 'a');
        select * into c from ojs.claim('a', 'w');
        perform ojs.extend(c.id, '1 minute');
        perform ojs.info(c.id);
        perform ojs.progress(c.id, 0.5);
        perform ojs.ack(c.id, '{"n": 1}');},
    'failures, retries and the end of an attempt' => q{
        perform ojs.push('a.b', queue => 'f', retry => '{"max_attempts": 1}');
        select * into c from ojs.claim('f', 'w');
        perform ojs.fail(c.id, '{"type": "X", "message": "m"}');
        perform ojs.push('a.b', queue => 'n');
        select * into c from ojs.claim('n', 'w');
        perform ojs.nack(c.id);
        perform ojs.cancel(c.id);},
    'unique jobs, deduplication and batches' => q{
        perform ojs.push('a.b', queue => 'u', "unique" => '{"keys": ["type"], "on_conflict": "ignore"}');
        perform ojs.push('a.b', queue => 'u', deduplication_key => (i % 10)::text);
        perform ojs.push_many('[{"type": "a.b", "args": [], "queue": "u"}, {"type": "a.b", "args": [], "queue": "u"}]');
        for r in select * from ojs.claim('u', 'w', 10) loop perform ojs.ack(r.id); end loop;},
    'errors' => q{
        begin perform ojs.push('A B'); exception when others then end;
        begin perform ojs.push('a.b', retry => '{"max_attempts": "x"}'); exception when others then end;
        begin perform ojs.ack('00000000-0000-0000-0000-000000000000'); exception when others then end;
        begin perform ojs.push('a.b', "unique" => '{"keys": ["type", {"a": 1}]}'); exception when others then end;
        begin perform ojs.push_job('{"type": "a.b", "args": [1], "queue": "e", "x": 1}'); perform 1 / (i - i);
            exception when others then end;},
    'HTTP' => q{
        if i % 10 = 0 then
            perform ojs.http('POST', '/ojs/v1/jobs', '{"content-type": "application/json"}',
                '{"type": "a.b", "args": [], "options": {"queue": "h"}}');
            perform ojs.http('POST', '/ojs/v1/workers/fetch', '{"content-type": "application/json"}',
                '{"queues": ["h"], "worker_id": "w"}');
            perform ojs.http('GET', '/ojs/v1/queues/h');
            perform ojs.http('GET', '/nothing');
        end if;});
cmp_ok(grown($rounds{$_}), '<', 16 * $rounds, "a session's memory stays flat: $_") for sort keys %rounds;

# What a batch costs at its worst, as multiples of its size: PostgreSQL alone takes five to make jsonb of it.
sub multiple {
    my ($call, $jobs, $bytes) = @_;
    my $most = q{select substring(pg_read_file('/proc/self/status', 0, 4000) from 'VmHWM:\s+(\d+)');};
    my ($head, $tail) = $call =~ /http/ ? ('{"jobs": [', ']}') : ('[', ']');
    $node->safe_psql('postgres', qq{create table if not exists body as select ''::text as text; delete from body;
        insert into body select '$head' || string_agg('{"type": "a.b", "queue": "large", "args": ["'
            || repeat('x', $bytes) || '"]}', ',') || '$tail' from generate_series(1, $jobs)});
    my ($before, $after, $size) = split /\n/, $node->safe_psql('postgres', join "\n",
        $call =~ s/body\.text/'$head$tail'/r, $most, $call, $most, 'select octet_length(text) / 1024 from body');
    note("$jobs jobs of $bytes bytes: " . ($after - $before) . " kB for $size kB");
    return ($after - $before) / $size;
}
my $push_many = q{copy (select count(*) from body, ojs.push_many(body.text::jsonb)) to '/dev/null';};
my $http = q{copy (select r.status from body, ojs.http('POST', '/ojs/v1/jobs/batch',
    '{"content-type": "application/json"}', body.text) r) to '/dev/null';};
cmp_ok(multiple($push_many, 10000, 1400), '<', 7.6, 'a batch of many jobs costs 7.6 times its size at most');
cmp_ok(multiple($push_many, 15, 970_000), '<', 7, 'one of large jobs seven times');
cmp_ok(multiple($http, 10000, 1400), '<', 7.3, 'over HTTP one of many jobs 7.3 times');
cmp_ok(multiple($http, 15, 970_000), '<', 5.8, 'and one of large jobs 5.8 times');

# Runs the worker through an hour and a half of its clock; jobs of a cron entry fail, expire and are forgotten in it.
# What it keeps of the catalog has been read in the first hour, but for the plans of duties that it does every few
# minutes by the system's clock: about 64 kB, once.
my $held = sub {
    my $log = -s $node->logfile;
    $node->safe_psql('postgres', "select pg_log_backend_memory_contexts($worker)");
    my $total;
    for (1 .. 1000) {
        last if ($total) = slurp_file($node->logfile, $log) =~ /Grand total: .*?(\d+) used/;
        select undef, undef, undef, 0.05;
    }
    return $total;
};
$node->safe_psql('postgres', q{select ojs.schedule('minute', '* * * * *',
    '{"type": "cron.job", "queue": "cron", "options": {"expires_at": "+PT30S", "tags": ["x"]}}',
    '{"overlap_policy": "allow"}')});
my $before;
for my $minute (map { 3 * $_ } 1 .. 30) {
    $node->safe_psql('postgres', "alter system set ojs.clock_offset = '$minute min'");
    $node->safe_psql('postgres', q{select pg_reload_conf()});
    $node->poll_query_until('postgres',
        "select max(created_at) >= ojs_store.now() - interval '2 min' from ojs.jobs where queue = 'cron'") or last;
    $before = $held->() if $minute == 60;
}
my $after = $held->();
note("$before bytes, then $after");
cmp_ok($after - $before, '<', 96 * 1024, "a worker's memory stays flat over half an hour of its clock");
is(worker_pid($node), $worker, 'it is the same worker');

$node->stop;
done_testing();
