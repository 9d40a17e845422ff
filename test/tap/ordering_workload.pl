# Order per key through kills of sessions and of the server, until every job has ended (DDP-11, R-88). test/torture has
# the same with many more operations. And what ordering keys have to do with durable leases, and with a dump.
# Runs long
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;

my $preload = $ENV{OJS_PRELOAD} // 1;
my $node = server('order', preload => $preload, conf => "ojs.tick_interval = 50\n");

sub sql { return $node->safe_psql('postgres', $_[0]); }

# An ended job stands in `worked`, with a number that was drawn before its end was committed: so within a key the
# numbers are in the order of the ends.
sql(q{
    create sequence turn;
    create table worked (job_id uuid, n bigint);
    select ojs.create_queue('o',
        '{"default_retry": {"max_attempts": 100, "initial_interval": "PT0.05S", "jitter": false}}');
    create function put() returns bigint language sql as $$
        select count(*) from ojs.push_many((select jsonb_agg(jsonb_build_object('type', 'o.t', 'args', '[]'::jsonb,
            'queue', 'o', 'ordering_key', 'key ' || floor(random() * 20))) from generate_series(1, 5))) $$;
    create procedure work(worker text, pushes int) language plpgsql as $$
    declare
        job ojs.claimed_job;
        how float8;
    begin
        loop
            if pushes > 0 then
                perform put();
                pushes := pushes - 1;
                if random() < 0.2 then rollback; else commit; end if;
            end if;
            for job in select * from ojs.claim('o', worker, 4, lease => '1 s', wait => '0.1 s') loop
                how := random();
                begin
                    if how < 0.08 then
                        perform ojs.fail(job.id, '{"type": "Net", "message": "broken"}', lease_id => job.lease_id);
                    elsif how < 0.16 then
                        perform ojs.nack(job.id, lease_id => job.lease_id);
                    elsif how > 0.17 then -- else it runs out
                        insert into worked select job.id, nextval('turn');
                        perform ojs.ack(job.id, lease_id => job.lease_id);
                        if how > 0.95 then raise sqlstate 'OJ311'; end if;
                    end if;
                exception when sqlstate 'OJ311' then null; -- the lease has run out, or as if: what was done is undone
                end;
            end loop;
            if random() < 0.1 then rollback; else commit; end if;
            exit when pushes = 0 and random() < 0.2
                and not exists (select from ojs.jobs where queue = 'o' and state not in ('completed', 'discarded'));
        end loop;
    end $$});

my @running;
sub start_workers {
    my ($pushes) = @_;
    for my $n (1 .. 4) {
        my %io = (in => '', out => '', err => '');
        push @running, [IPC::Run::start(['psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'),
            '-c', "call work('w$n', $pushes)"], '<', \$io{in}, '>', \$io{out}, '2>', \$io{err}), \%io];
    }
}
sub wait_for_workers {
    my @errors;
    for (@running) {
        my ($process, $io) = @$_;
        push @errors, $io->{err} unless $process->finish;
    }
    @running = ();
    return join '', @errors;
}

for my $fault ('terminate', 'immediate', 'terminate', 'immediate') {
    my $before = sql('select count(*) from worked');
    start_workers(40);
    awaits($node, "select count(*) >= $before + 60 from worked", "the workers work ($fault)");
    if ($fault eq 'terminate') {
        sql("select pg_terminate_backend(pid) from pg_stat_activity where query like 'call work%'");
    } else {
        $node->stop('immediate');
        $node->start;
    }
    like(wait_for_workers(), qr/terminat|server closed|shut/i, "and are ended ($fault)");
}
start_workers(0);
is(wait_for_workers(), '', 'the last ones work until nothing is left');
is(sql(q{select string_agg(distinct state, ' ') from ojs.jobs where queue = 'o'}), 'completed',
    'every job of an ordering key has been done (DDP-11)');
is(sql(q{select count(*) - count(distinct job_id) || ' ' || (select count(*) from ojs.jobs where queue = 'o') - count(*)
    from worked}), '0 0', 'once');
is(sql(q{select count(*) from (select seq, lag(seq) over (partition by extra ->> 'ordering_key' order by n) as before
    from worked join ojs.jobs on id = job_id) w where before > seq}), '0',
    'in order of push, through kills, crashes, retries and releases (R-88)');
awaits($node, q{select ojs.tick() is not null and not exists (select from ojs_store.ordering_line)
    and not exists (select from ojs_store.ordering_due)}, 'no line is left');

# A durable lease holds back the others after a crash.
sql(q{
    select ojs.create_queue('kept', '{"leases_durable": true}');
    select ojs.push('k.' || n, queue => 'kept', options => '{"ordering_key": "K"}') from unnest('{a,b,c}'::text[]) n;
    create table held as select id, lease_id from ojs.claim('kept', 'w', 5, lease => '1 hour')});
$node->stop('immediate');
$node->start;
is(sql("select count(*) from ojs.claim('kept', 'w', 5)"), '0',
    'a durable lease holds back its key after a crash (R-88)');
is(sql("select (ojs.ack(id, lease_id => lease_id)).type from held"), 'k.a', 'its holder finishes it');
is(sql("select string_agg(type, ' ') from ojs.claim('kept', 'w', 5)"), 'k.b', 'then the next goes on');

# A dump and a restore keep the order.
sql(q{
    select ojs.push('d.' || n, queue => 'dumped', options => '{"ordering_key": "D"}') from unnest('{a,b,c}'::text[]) n;
    select ojs.push('d.s', queue => 'dumped', scheduled_at => now() + interval '1 hour',
        options => '{"ordering_key": "S"}');
    select ojs.push('d.t', queue => 'dumped', options => '{"ordering_key": "S"}')});
my $dump = $node->basedir . '/dump';
$node->command_ok(['pg_dump', '-Fc', '-f', $dump, '-d', $node->connstr('postgres')], 'a dump');
sql('create database target');
$node->command_ok(['pg_restore', '--exit-on-error', '-d', $node->connstr('target'), $dump], 'is restored');
is($node->safe_psql('target', q{select string_agg(type, ' ') from ojs.claim('dumped', 'w', 5)}), 'd.a',
    'who is held back by whom is as it was before a dump and a restore (R-88)');
is($node->safe_psql('target', q{select count(ojs.ack(id)) from ojs.jobs where queue = 'dumped' and state = 'active';
    select string_agg(type, ' ') from ojs.claim('dumped', 'w', 5)}), "1\nd.b", 'and goes on so');

# Keys that an open transaction leaves undecided are looked at in turns, and each tick begins where the last one ended.
sql(q{create function each_key(n int) returns bigint language sql as $$
    select count(p.id) from generate_series(1, n, 1000) first, lateral ojs.push_many((select jsonb_agg(
        jsonb_build_object('type', 'u.t', 'args', '[]'::jsonb, 'queue', 'u', 'ordering_key', 'key ' || i))
        from generate_series(first, first + 999) i)) p $$});
my $open = $node->background_psql('postgres');
$open->query('begin; select each_key(8000)');
sql('select each_key(8000)');
my @pages = split /\n/, sql(q{
    create function pages() returns int language plpgsql as $$
    declare
        plan json;
    begin
        execute 'explain (analyze, buffers, format json) select ojs.tick()' into plan;
        return plan #>> '{0,Plan,Shared Hit Blocks}';
    end $$} . ';select pages()' x 7);
cmp_ok($pages[6], '<', 1.25 * $pages[2], "a tick's look at undecided keys costs no more as it goes on: @pages");
$open->query('rollback');
$open->quit;
awaits($node, q{select ojs.tick() is not null and not exists (select from ojs_store.ordering_due)},
    'when the transaction has ended all are decided');

done_testing();
