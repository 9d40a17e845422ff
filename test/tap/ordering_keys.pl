# Jobs of an ordering key after a crash of the server, with prepared transactions too (DDP-11, R-88). And what 100,000
# blocked jobs cost a claim.
use strict;
use warnings;
use Ojs;
use Test::More;

my $preload = $ENV{OJS_PRELOAD} // 1;
my $node = server('ordering', preload => $preload, conf => "ojs.tick_interval = 50\nmax_prepared_transactions = 5\n");

sub sql { return $node->safe_psql('postgres', $_[0]); }

# A prepared ack outlives a crash: the line waits for it, whichever way it goes.
for my $end ('commit', 'rollback') {
    sql(qq{
        select ojs.push('p.' || n, queue => 'p$end', options => '{"ordering_key": "P"}')
        from unnest('{a,b,c}'::text[]) n;
        create table p$end as select id from ojs.claim('p$end', 'w', 5);
        begin; select ojs.ack(id) from p$end; prepare transaction 'p$end'});
    is(sql("select count(*) from ojs.claim('p$end', 'w')"), '0', "a prepared ack has let nobody go ($end)");
    $node->stop('immediate');
    $node->start;
    is(sql("select count(*) from ojs.claim('p$end', 'w')"), '0', 'nor after a crash');
    sql("$end prepared 'p$end'");
    sql("select ojs_store.reconcile('0')");
    is(sql("select string_agg(type, ' ') from ojs.claim('p$end', 'w', 5)"), $end eq 'commit' ? 'p.b' : 'p.a',
        "until it is decided ($end)");
}

# Who was scheduled, retried or held keeps its place after a crash.
sql(q{
    create function pg_temp.o(key text, ordering text default 'strict', retry boolean default false) returns jsonb
        language sql as $$ select jsonb_build_object('ordering_key', key, 'ordering', ordering, 'retry',
            case when retry then '{"initial_interval": "PT1H"}'::jsonb end) $$;
    select ojs.push('q.a', queue => 'q', options => pg_temp.o('Q', retry => true)),
        ojs.push('q.b', queue => 'q', options => pg_temp.o('Q'));
    select ojs.fail(id, '{"type": "Net", "message": "broken"}') from ojs.claim('q', 'w', 5);
    select ojs.push('r.a', queue => 'q', options => pg_temp.o('R', ordering => 'relaxed', retry => true)),
        ojs.push('r.b', queue => 'q', options => pg_temp.o('R', ordering => 'relaxed')),
        ojs.push('r.c', queue => 'q', options => pg_temp.o('R', ordering => 'relaxed'));
    select ojs.fail(id, '{"type": "Net", "message": "broken"}') from ojs.claim('q', 'w', 5);
    select ojs.push('s.a', queue => 'q', scheduled_at => now() + interval '1 hour', options => pg_temp.o('S')),
        ojs.push('s.b', queue => 'q', options => pg_temp.o('S'))});
$node->stop('immediate');
$node->start;
is(sql("select string_agg(type, ' ') from ojs.claim('q', 'w', 5)"), 'r.b',
    'a crash changes nothing in what holds back whom (R-88)');

# 100,000 blocked jobs in front of a free one.
sql(q{
    select ojs.push('b.free', queue => 'few');
    select count(*) from generate_series(1, 100) g, lateral ojs.push_many((
        select jsonb_agg('{"type": "b.t", "args": [], "queue": "many", "ordering_key": "B"}'::jsonb)
        from generate_series(1, 1000 + 0 * g))) p;
    select id from ojs.claim('many', 'w');
    select ojs.push('b.free', queue => 'many');
});
sub blocks_of {
    my ($queue) = @_;
    return sql("begin; select id from ojs.claim('none', 'w', missing_ok => true) \\g /dev/null
        explain (analyze, buffers, format json) select * from ojs.claim('$queue', 'w')")
        =~ /"Shared Hit Blocks": (\d+)/ ? $1 : undef;
}
my ($few, $many) = (blocks_of('few'), blocks_of('many'));
cmp_ok($few, '>', 0, 'a claim reads');
cmp_ok($many, '<=', 1.5 * $few,
    "a claim reads as much where 100,000 blocked jobs are before the one it gets ($many blocks, $few without)");

done_testing();
