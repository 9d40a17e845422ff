# Which commits are waited for: those of a queue that is not durable are not, and nothing of the caller's own is risked.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;

# Nobody but commits writes WAL out here: the process that would do it is stopped.
sub stop_walwriter {
    my ($node) = @_;
    my $pid = $node->safe_psql('postgres', "select pid from pg_stat_activity where backend_type = 'walwriter'");
    kill 'STOP', $pid or die "no walwriter";
    return $pid;
}

my $node = server('durable', conf => "checkpoint_timeout = 1h\nbgwriter_lru_maxpages = 0\n");
$node->safe_psql('postgres', q{
    create table mine (id uuid);
    select ojs.create_queue('safe'), ojs.create_queue('fast', '{"durable": false}'),
        ojs.create_queue('to-fast', '{"max_deliveries": 1, "dead_letter": "fast"}'),
        ojs.create_queue('to-safe', '{"durable": false, "max_deliveries": 1, "dead_letter": "safe"}');
    select ojs.push('test.job', queue => 'fast') from generate_series(1, 10);
    select ojs.push('test.job', queue => 'safe') from generate_series(1, 3);
    create table held as
        select id, queue, row_number() over (partition by queue order by seq) as n
        from ojs.claim('{fast,safe}'::text[], 'w', max => 100, lease => '1 hour');
    select ojs.push('test.job', queue => q) from unnest('{to-fast,to-safe}'::text[]) q;
    select ojs.nack(id) from ojs.claim('{to-fast,to-safe}'::text[], 'w', max => 2);
    select count(ojs.push('test.job', queue => 'warm')), count(l) from ojs_store.delayed l});
my $walwriter = stop_walwriter($node);

# Whether the commit of this statement has been written out when the session goes on.
my $session = $node->background_psql('postgres');
sub written {
    return $session->query_safe(
        'select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), pg_current_wal_flush_lsn()) < 100') eq 't';
}
sub flushed {
    my ($sql) = @_;
    # What is looked up in the catalogs may write a little, once.
    for (1 .. 10) { $session->query_safe("select pg_logical_emit_message(true, 'test', '')"); last if written(); }
    written() or die 'a commit that is waited for is not written out';
    $session->query_safe($sql);
    return written() ? 't' : 'f';
}
sub held { my ($queue, $n) = @_; return "(select id from held where queue = '$queue' and n = $n)"; }

$session->query_safe("select ojs.progress(" . held('safe', 3) . ", 0.1);
    select ojs.checkpoint(" . held('safe', 3) . ", '1')");
is(flushed("select ojs.push('test.job', queue => 'safe')"), 't', 'Q-10: a push to a durable queue is waited for');
is(flushed("select ojs.push('test.job', queue => 'fast')"), 'f',
    'Q-10, R-79: one to a queue that is not durable is not');
is(flushed("select ojs.push_job('{\"type\": \"test.job\", \"args\": [], \"queue\": \"fast\"}')"), 'f', 'Q-10: as JSON');
is(flushed("select count(ojs.push('test.job', queue => 'fast')) from generate_series(1, 5)"), 'f',
    'Q-10: nor are several in one statement');
is(flushed("select * from ojs.push_many('[{\"type\": \"test.job\", \"args\": [], \"queue\": \"fast\"},
    {\"type\": \"test.job\", \"args\": [], \"queue\": \"fast\"}]')"), 'f', 'Q-10: nor a batch');
is(flushed("select * from ojs.push_many('[{\"type\": \"test.job\", \"args\": [], \"queue\": \"fast\"},
    {\"type\": \"test.job\", \"args\": [], \"queue\": \"safe\"}]')"), 't',
    'Q-10: a batch is, if one of its queues is durable');
is(flushed("select ojs.push('test.job', queue => 'safe', options => '{\"delivery\": \"at_most_once\"}')"), 'f',
    'DLV-01: nor a push of a job that may be lost');
is(flushed("select ojs.ack(" . held('safe', 1) . ")"), 't', 'Q-37: an ack in a durable queue is waited for');
is(flushed("select ojs.progress(" . held('safe', 2) . ", 0.5)"), 'f', 'PRG-01: a report of progress is not');
is(flushed("select ojs.checkpoint(" . held('safe', 2) . ", '{}')"), 't', 'DUR-01: a checkpoint is');
is(flushed("select ojs.ack(" . held('fast', 1) . ")"), 'f', 'Q-37: one in a queue that is not durable is not');
is(flushed("select * from ojs.ack_many('w', array[" . held('fast', 2) . "])"), 'f', 'Q-37: nor ack_many');
is(flushed("select * from ojs.ack_many('w', array[" . held('fast', 3) . ', ' . held('safe', 2) . "])"), 't',
    'Q-37: unless one of its queues is durable');
is(flushed("select * from ojs.ack_and_claim('w', 'fast', array[" . held('fast', 4) . "])"), 'f',
    'Q-37: nor ack_and_claim');
is(flushed("select ojs.fail(" . held('fast', 5) . ", '{\"type\": \"E\", \"message\": \"m\"}', delay => '1 hour')"),
    'f', 'R-79: nor a fail');
is(flushed("select ojs.nack(" . held('fast', 6) . ", '1 hour')"), 'f', 'R-79: nor a nack');
is(flushed("select * from ojs.nack_many('w', array[" . held('fast', 7) . "], '1 hour')"), 'f', 'R-79: nor nack_many');
is(flushed("select * from ojs.claim('to-fast', 'w')"), 'f',
    'Q-53: a move to a queue that is not durable is not waited for');
is(flushed("select * from ojs.claim('to-safe', 'w')"), 't', 'Q-53: one to a durable queue is');

# What the caller writes keeps its durability.
is(flushed("begin; select ojs.push('test.job', queue => 'fast'); commit"), 't',
    'R-79: in a transaction block the setting stands');
is(flushed("insert into mine select id from ojs.push('test.job', queue => 'fast')"), 't',
    'R-79: the statement writes the push into a table');
is(flushed("with w as (insert into mine values (gen_random_uuid()) returning 1)
    select ojs.push('test.job', queue => 'fast') from w"), 't', 'R-79: the statement writes before the push');
is(flushed("do \$\$ begin perform ojs.push('test.job', queue => 'fast'); insert into mine values (null); end \$\$"),
    't', 'R-79: a block of code writes after the push');
is(flushed("do \$\$ begin insert into mine values (null); perform ojs.push('test.job', queue => 'fast'); end \$\$"),
    't', 'R-79: a block of code writes before the push');
is(flushed("do \$\$ begin perform ojs.push('test.job', queue => 'fast'); end \$\$"), 'f',
    'R-79: a block of code that only pushes is not waited for');
is(flushed("do \$\$ begin perform ojs.push('test.job', queue => 'fast'); perform ojs.push('test.job', queue => 'safe');
    end \$\$"), 't', 'R-79: a push to a durable queue beside it is waited for');
is(flushed("do \$\$ begin perform ojs.push('test.job', queue => 'fast'); begin insert into mine values (null);
    exception when others then null; end; end \$\$"), 't', 'R-79: a subtransaction writes after the push');
is(flushed("select ojs.push('test.job', queue => 'fast'); show synchronous_commit; insert into mine values (null)"),
    't', 'R-79: the setting is back for the next statement');
is($node->safe_psql('postgres', "select ojs.push('test.job', queue => 'fast') is null; show synchronous_commit"),
    "f\non", 'R-79: and reads so');

$session->query_safe(q{
    create function note(job jsonb) returns jsonb language sql as $$
        insert into public.mine values (null) returning $1 $$;
    create function pass(job jsonb) returns jsonb language sql as $$ select $1 $$;
    select ojs.register_hook('hook', 'enqueue', 'pass(jsonb)')});
is(flushed("select ojs.push('test.job', queue => 'fast')"), 'f', 'R-79: a hook that writes nothing changes nothing');
$session->query_safe("select ojs.unregister_hook('hook'), ojs.register_hook('hook', 'enqueue', 'note(jsonb)')");
is(flushed("select ojs.push('test.job', queue => 'fast')"), 't', 'R-79: what a hook writes is the caller\'s');
$session->query_safe("select ojs.unregister_hook('hook')");

# A crash of the server.
$session->quit;
$node->safe_psql('postgres', "select ojs.push('test.job', queue => 'safe', args => '[\"kept\"]')");
$node->safe_psql('postgres', "select ojs.ack(" . held('safe', 3) . ')');
$node->safe_psql('postgres', "select ojs.push('test.job', queue => 'fast', args => '[\"lost\"]')");
$node->safe_psql('postgres', "select ojs.ack(" . held('fast', 8) . ')');
$node->stop('immediate');
$node->start;
is($node->safe_psql('postgres', "select count(*) from ojs.jobs where args = '[\"kept\"]'"), 1,
    'Q-10: a push to a durable queue survives a crash');
is($node->safe_psql('postgres', "select state from ojs.jobs where id = " . held('safe', 3)), 'completed',
    'Q-37: and so does an ack');
is($node->safe_psql('postgres', "select count(*) from ojs.jobs where args = '[\"lost\"]'"), 0,
    'Q-10: the newest push to the other may be lost');
is($node->safe_psql('postgres', "select state from ojs.jobs where id = " . held('fast', 8)), 'available',
    'Q-37: and the newest acked job be back');
$node->stop;

done_testing();
