# lock_upgrade.pl: no call takes a weak lock on a table and later a stronger one: an administrator's REINDEX, which has
# the table in between and asks for its indexes, would meet it in a deadlock. PGX-05, PGX-16.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use IPC::Run ();
use Ojs;
use Test::More;

my $node = server('lock_upgrade', preload => 1,
    conf => "fsync = off\nojs.worker = off\ndeadlock_timeout = '20ms'\n");
my $sql = sub { return $node->safe_psql('postgres', shift) };
my $held = sub {
    my ($queue, $more) = @_;
    pushed($node, $queue, $more);
    return $sql->("select id from ojs.claim('$queue', 'w', lease => '1 hour')");
};
$sql->(q{select from ojs.create_queue('logged', '{"leases_durable": true, "lease_log": true, "concurrency": 9}');
    select from ojs.create_queue('sized', '{"max_size_bytes": 100000}')});
my ($job, $logged) = map { $held->($_) } qw(held logged);
my $ordered = $held->('ordered', q{options => '{"ordering_key": "k"}'});
my ($ready, $scheduled) = (pushed($node, 'ready'), pushed($node, 'later', "delay => '1 hour'"));
my $ended = $held->('held', q{retry => '{"max_attempts": 1, "on_exhaustion": "dead_letter"}'});
$sql->(qq{select from ojs.fail('$ended', '{"type": "t", "message": "m"}')});
pushed($node, 'sized');
my $workflow = $sql->(q{select ojs.create_workflow('{"type": "chain", "name": "n", "steps": [
    {"type": "a.b", "args": []}, {"type": "a.c", "args": []}]}') ->> 'id'});

my %calls = (
    push => q{ojs.push('t', queue => 'ready')},
    push_sized => q{ojs.push('t', queue => 'sized')},
    push_unique => q{ojs.push('t', "unique" => '{"keys": ["type", "queue"]}')},
    push_ordered => q{ojs.push('t', queue => 'ordered', options => '{"ordering_key": "k"}')},
    claim => q{ojs.claim('ready', 'w')},
    claim_sized => q{ojs.claim('sized', 'w')},
    claim_logged => q{ojs.claim('logged', 'w')},
    map({; "ack_$_->[0]" => qq{ojs.ack('$_->[1]')}, "nack_$_->[0]" => qq{ojs.nack('$_->[1]')},
        "extend_$_->[0]" => qq{ojs.extend('$_->[1]', '1 hour')},
        "fail_$_->[0]" => qq{ojs.fail('$_->[1]', '{"type": "t", "message": "m"}')} }
        [plain => $job], [logged => $logged], [ordered => $ordered]),
    ack_many => qq{ojs.ack_many('w', '{$job}')},
    beat => qq{ojs.beat('w', '{$job}')},
    cancel => qq{ojs.cancel('$ready')},
    cancel_scheduled => qq{ojs.cancel('$scheduled')},
    retry => qq{ojs.retry('$ended')},
    delete_job => qq{ojs.delete_job('$ended')},
    cancel_many => q{ojs.cancel_many('{"queue": "ready"}', true)},
    retry_many => q{ojs.retry_many('{"queue": "held"}', true)},
    delete_many => q{ojs.delete_many('{"queue": "held"}', true)},
    purge_queue => q{ojs.purge_queue('ready', confirm => true)},
    create_queue => q{ojs.create_queue('new')},
    configure_queue => q{ojs.configure_queue('ready', '{"lease_ms": 5000}')},
    pause_queue => q{ojs.pause_queue('ready')},
    drop_queue => q{ojs.drop_queue('ready', 'discard')},
    register_worker => q{ojs.register_worker('w2')},
    set_worker_state => q{ojs.set_worker_state('w', 'quiet')},
    deregister_worker => q{ojs.deregister_worker('w', true)},
    create_schema => q{ojs.create_schema('x.y', '1', '{}')},
    cancel_workflow => qq{ojs.cancel_workflow('$workflow')},
    notify_events => q{ojs.notify_events()},
);

# The administrator has the table, the call waits for it, and then the administrator wants the indexes.
my $admin = $node->background_psql('postgres', on_error_stop => 0);
sub meets
{
    my ($call, $table) = @_;
    $admin->query("begin; lock table ojs_store.$table in share mode");
    my ($in, $out, $err) = ("begin; select from $call; rollback;\n\\echo done\n", '',
        '');
    my $run = IPC::Run::start(['psql', '-XAtq', '-d', $node->connstr('postgres')], '<', \$in, '>', \$out, '2>', \$err);
    my $waits;
    while (!$waits && $out !~ /done/) {
        $run->pump_nb;
        $waits = $admin->query("select 1 from pg_locks where relation = 'ojs_store.$table'::regclass and not granted");
    }
    $admin->{stderr} = '';
    $admin->query("reindex table ojs_store.$table");
    my $said = $admin->{stderr};
    $admin->{stderr} = '';
    $admin->query('rollback');
    $run->finish;
    return $said . $err;
}

for my $name (sort keys %calls) {
    # Tables that the call reads by a lock of their own and that it writes.
    my @tables = split /\n/, $sql->(qq{begin; select from $calls{$name} \\g /dev/null
        select c.relname from pg_locks l join pg_class c on c.oid = l.relation and c.relkind = 'r'
        where l.pid = pg_backend_pid() and c.relnamespace = 'ojs_store'::regnamespace
        group by 1 having bool_or(l.mode = 'AccessShareLock') and bool_or(l.mode = 'RowExclusiveLock') order by 1});
    is(join('', map { "$_: " . meets($calls{$name}, $_) . "\n" } @tables), join('', map { "$_: \n" } @tables),
        "$name takes the stronger lock first");
}
$admin->quit;
$node->stop;
done_testing();
