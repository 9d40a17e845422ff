# Workflows under many finishers at once, killed sessions and crashes of the server (WF-03, WF-08, WF-12): each step and
# callback once, none left open. And dump and restore of workflows that run.
use strict;
use warnings;
use Ojs;
use IPC::Run qw(start finish);
use PostgreSQL::Test::Utils;
use Test::More;

my $preload = $ENV{OJS_PRELOAD} // 1;
my $node = server('workflows', preload => $preload, conf => "ojs.tick_interval = 50\n");

sub sql { return $node->safe_psql('postgres', $_[0]); }

# Ten chains of a batch (20 jobs and a chain of two, two callbacks that are due) and a last step.
sql(q{
    select ojs.create_queue('wf', '{"default_retry": {"max_attempts": 100}, "expiry_counts_attempt": false}');
    select count(ojs.create_workflow(jsonb_build_object('type', 'chain', 'name', 'n' || n, 'steps', jsonb_build_array(
        jsonb_build_object('type', 'batch', 'jobs', (
                select jsonb_agg(jsonb_build_object('type', 'wf.member', 'args', jsonb_build_array(m),
                    'queue', 'wf')) from generate_series(1, 20) m)
            || '[{"type": "chain", "steps": [{"type": "wf.x", "args": [], "queue": "wf"},
                {"type": "wf.y", "args": [], "queue": "wf"}]}]'::jsonb,
            'callbacks', '{"on_complete": {"type": "wf.complete", "args": [], "queue": "wf"},
                "on_success": {"type": "wf.success", "args": [], "queue": "wf"},
                "on_failure": {"type": "wf.failure", "args": [], "queue": "wf"}}'::jsonb),
        '{"type": "wf.last", "args": [], "queue": "wf"}'::jsonb)))) from generate_series(1, 10) n});

# Many sessions finish what they claim: one by one, in bulk, in longer transactions, and some of them roll back.
my %scripts = (
    one => q{select ojs.ack(id, '1') from ojs.claim('wf', 'w', 2);},
    many => q{select ojs.ack_many('w', array_agg(id)) from ojs.claim('wf', 'w', 5);},
    long => qq{begin;\nselect ojs.ack(id) from ojs.claim('wf', 'w', 2);\nselect ojs.ack(id) from ojs.claim('wf', 'w',
        1);\ncommit;},
    grow => q{select case when type = 'wf.x' then ojs.extend_workflow((extra ->> 'workflow_id')::uuid,
        '{"steps": [{"type": "wf.z", "args": [], "queue": "wf"}]}') end, ojs.ack(id)
        from ojs.claim('wf', 'w', 3);},
    rolled => qq{begin;\nselect ojs.ack(id) from ojs.claim('wf', 'w', 3);\nrollback;});
my @files;
for my $name (sort keys %scripts) {
    my $file = $node->basedir . "/$name.sql";
    append_to_file($file, "$scripts{$name}\n");
    push @files, '-f', $file . ($name eq 'grow' ? '@5' : '');
}
my @pgbench = ('pgbench', '-n', '-c', 10, '-j', 2, @files, '-h', $node->host, '-p', $node->port, '-U', 'postgres',
    'postgres');
$pgbench[-2] = (getpwuid $>)[0];

for my $done (60, 120) {
    my ($out, $err) = ('', '');
    my $run = start([@pgbench, '-t', 1000000], '>', \$out, '2>', \$err);
    ok($node->poll_query_until('postgres', "select count(*) >= $done from ojs_store.workflow_end"),
        "$done members have ended");
    $node->stop('immediate');
    finish($run);
    $node->start;
}
# Whatever each round leaves is for the next; without a worker the ticks are ours.
my $rounds = 0;
until (sql("select count(*) from ojs.workflows where state = 'running'") eq '0' || ++$rounds > 100) {
    run_log([@pgbench, '-t', 20], '>', '/dev/null', '2>', '/dev/null');
    sql('select ojs.tick()');
}

is(sql("select state, count(*) from ojs.workflows where parent_id is null group by 1"), 'completed|10',
    'WF-12: all of them complete');
is(sql("select string_agg(type || '=' || n, ' ' order by type)
    from (select type, count(*) as n from ojs_store.job where type <> 'wf.z' group by 1) t"),
    'wf.complete=10 wf.last=10 wf.member=200 wf.success=10 wf.x=10 wf.y=10',
    'WF-08: each callback and each step once, and none that was not due');
my $grown = sql("select count(*) from ojs.events where type = 'workflow.extended'");
cmp_ok($grown, '>', 0, 'WF-16: some chains have grown while they ran');
is(sql("select count(*) from ojs.jobs where type = 'wf.z' and state = 'completed'"), $grown,
    'WF-16: by as many steps as were added, and each of these has been done');
is(sql("select count(distinct (workflow, position)) || '/' || count(*) from ojs_store.workflow_end"),
    join('/', (270 + $grown) x 2), 'WF-03: each member ended once');
is(sql('select (select count(*) from ojs_store.workflow_open), (select count(*) from ojs_store.workflow_due),
    ojs_store.check_workflows()'), '0|0|0', 'WF-08: nothing is left open');
is(health($node, 'workflows,last_check,mended'), '0', 'and nothing had to be mended');

# Whoever may connect can take any advisory lock.
sql('create role nobody login');
my $nobody = $node->background_psql('postgres', extra_params => ['-U', 'nobody']);
$nobody->query_safe("select count(pg_advisory_lock(oid::bigint)) from pg_class where relnamespace = (
    select oid from pg_namespace where nspname = 'ojs_store')");
sql(q{update ojs_store.workflow_check set checked_at = '-infinity'});
awaits($node, q{select checked_at > '-infinity' from ojs_store.workflow_check},
    'workflows are checked, whatever locks others hold');
$nobody->quit;

# A dump carries workflows that run, and the restored database has them go on.
sql(q{select ojs.create_workflow('{"type": "chain", "steps": [{"type": "d.one", "args": [], "queue": "d"},
    {"type": "d.two", "args": [], "queue": "d"}]}')});
is(sql(q{select (ojs.ack(id, '"kept"')).state from ojs.claim('d', 'w')}), 'completed', 'one step is done');
my $dump = $node->basedir . '/dump.sql';
command_ok(['pg_dump', '-f', $dump, '-h', $node->host, '-p', $node->port, 'postgres'], 'dumped');
$node->safe_psql('postgres', 'create database other');
command_ok(['psql', '-qX', '-v', 'ON_ERROR_STOP=1', '-h', $node->host, '-p', $node->port, '-d', 'other', '-f', $dump],
    'restored');
is($node->safe_psql('other', q{select type || ' ' || (extra ->> 'parent_results') from ojs.claim('d', 'w')}),
    'd.two ["kept"]', 'a restored workflow goes on where it was');
is($node->safe_psql('other', q{select (ojs.ack(job_id)).state from ojs.leases}), 'completed', 'its last step');
is($node->safe_psql('other', q{select state from ojs.workflows order by created_at desc, id desc limit 1}),
    'completed', 'and it is complete');
$node->stop;
done_testing();
