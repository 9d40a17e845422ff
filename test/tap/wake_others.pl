# wake_others.pl: a wake-up comes to somebody who can use it: what a tick finds, where there is no worker, no room for
# wishes or a tenant; and a job that whoever was woken for it cannot or does not take: PGX-07, PGX-08.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use List::Util qw(min);
use Ojs;
use Test::More;
use Time::HiRes qw(time);

my $node = server('wake_others', preload => 1, conf => "fsync = off\nojs.worker = off\nojs.tick_interval = '10 s'\n");
my $sql = sub { return $node->safe_psql('postgres', $_[0]) };

# --- without a worker ---
my $client = listener($node);
my $claims = sub { $client->query_safe("select from ojs.claim('$_[0]', 'listens')") };
$sql->(q{select ojs.create_queue(name) from unnest('{q,late,parted}'::text[]) name});
$claims->('q');
$sql->(q{begin; select ojs.push('test.job', queue => 'q'); prepare transaction 'p'; commit prepared 'p'});
$sql->('select ojs.tick()');
ok(heard($client, 'q'), 'who listens hears of a job of a prepared transaction by the next tick');

$sql->(q{select count(ojs.create_queue('full' || n)) from generate_series(1, 4096) n});
$sql->(q{select count(*) from generate_series(1, 4096) n, lateral ojs.claim('full' || n, 'listens')});
$claims->('late');
$sql->('select ojs.tick()') for 1 .. 3;
pushed($node, 'late');
ok(heard($client, 'late'), 'and of a queue whose flag found no room, after some ticks too');
$client->quit;
my $empty = q{select ojs.ack(id) from ojs.claim('{q,late}'::text[], 'ends', 10);
    select count(ojs.ack(job_id)) from ojs.leases};
$sql->($empty);

# --- waiting claims: nothing but the wake-up comes within a second ---
$node->append_conf('postgresql.conf', "ojs.worker = on\nojs.tenancy = optional\n");
$node->restart; # and so without flags
worker_pid($node);
my $waiting = q{select count(*) from pg_stat_activity
    where wait_event_type = 'Extension' and backend_type = 'client backend'};

# After `before` the sessions call these claims, the first at first; then what makes work happens. Returns how long it
# took until the last one has a job. A busy machine is slow at times: so the shortest of several rounds, and no more
# rounds than it takes to see one that only a wake-up explains.
my $soon = 0.5;
sub takes {
    my ($before, $happens, @claims) = @_;
    my $least = 20;
    for (1 .. 20) {
        $sql->($before);
        my @sessions = map { $node->background_psql('postgres', on_error_stop => 1) } @claims;
        for my $i (0 .. $#claims) {
            $sessions[$i]->{stdin} .= "$claims[$i];\n\\echo over\n";
            $sessions[$i]->{run}->pump_nb;
            $node->poll_query_until('postgres', "select ($waiting) = " . ($i + 1)) or die 'no claim waits';
        }
        my $from = time;
        $sql->($happens);
        $sessions[-1]->{run}->pump until $sessions[-1]->{stdout} =~ /over/;
        $least = min($least, time - $from);
        $sql->(q{select count(pg_cancel_backend(pid)) from pg_stat_activity where backend_type = 'client backend'
            and state = 'active' and pid <> pg_backend_pid()});
        for (@sessions) { eval { $_->quit } }
        $node->poll_query_until('postgres', "select ($waiting) = 0") or die 'a claim still waits';
        $sql->($empty);
        last if $least < $soon;
    }
    return $least;
}
sub claim { return "select id from ojs.claim('$_[0]', '$_[1]', wait => '20 s')" }
my $push = sub { return join ';', map { "select ojs.push('test.job', queue => '$_')" } @_ };

$sql->(q{select ojs.set_worker_state('old', 'quiet')});
cmp_ok(takes('', $push->('q'), claim('q', 'old'), claim('q', 'new')), '<', $soon, 'not to a worker that is quiet');
cmp_ok(takes(q{select ojs.set_worker_state('turns', 'running')},
    q{select ojs.set_worker_state('turns', 'quiet'); select ojs.push('test.job', queue => 'q')},
    claim('q', 'turns'), claim('q', 'new')), '<', $soon, 'nor to one that becomes quiet while it waits');
$sql->(q{select ojs.set_pool('p', '{"queues": ["q"], "concurrency": 1}')});
cmp_ok(takes(q{select ojs.push('test.job', queue => 'q'); select id from ojs.claim_pool('p', 'pool')}, $push->('q'),
    q{select id from ojs.claim_pool('p', 'pool', wait => '20 s')}, claim('q', 'new')), '<', $soon,
    'not to a pool that is full');
for my $order ('late,q', 'q,late') {
    my $two = "select id from ojs.claim('{$order}'::text[], 'both', wait => '20 s')";
    my $other = (split /,/, $order)[1];
    cmp_ok(takes('', 'begin; ' . $push->('q', 'late') . '; commit', $two, claim($other, 'one')), '<', $soon,
        "a job that a claim of $order does not take wakes another");
}
my $part = "set ojs.tenant = 'acme'; " . claim('parted', 'w');
cmp_ok(takes(q{select ojs.pause_queue('parted'); set ojs.tenant = 'acme';
    select ojs.push('test.job', queue => 'parted')}, q{select ojs.resume_queue('parted')}, $part), '<', $soon,
    "a queue that goes on wakes who waits for a tenant's part");

# --- a tick finds a tenant's job ---
my $of_tenant = $node->background_psql('postgres', on_error_stop => 1);
$of_tenant->query_safe(q{set ojs.tenant = 'acme'; listen ojs; select from ojs.claim('q', 'w')});
$sql->(q{set ojs.tenant = 'acme'; begin; select ojs.push('test.job', queue => 'q'); prepare transaction 'p';
    commit prepared 'p'; reset ojs.tenant; select ojs.tick()});
ok(heard($of_tenant, 'q'), 'under the name that the tenant knows');
$of_tenant->quit;
done_testing();
