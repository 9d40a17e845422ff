# settings.pl: what a session says of settings does not undo what the database says, and counts or is refused: PGX-18,
# MT-01. Where the library is not preloaded such a value is there before the setting is defined.
use strict;
use warnings;
use FindBin;
use lib $FindBin::RealBin;
use Ojs;
use PostgreSQL::Test::Cluster;
use Test::More;

my $plain = server('plain');
my $preloaded = server('preloaded', preload => 1);

for my $node ($plain, $preloaded) {
    my $name = $node->name;
    $node->safe_psql('postgres', q{create role eve login; grant ojs_producer, ojs_worker to eve;
        select ojs.push('a.b', queue => 'q')});
    $node->safe_psql('postgres', "alter database postgres set ojs.$_") for
        'tenancy = required', 'strict_queues = on', 'default_lease = 40000';
    my $as = sub {
        my ($role, $options, $sql) = @_;
        local $ENV{PGOPTIONS} = $options;
        local $ENV{PGUSER} = $role;
        my ($code, $out, $err) = $node->psql('postgres', $sql);
        return "$out$err";
    };
    my $push = q{select state from ojs.push('a.b', queue => 'new')};
    for my $option ('ojs.tenancy=off', 'OJS.Tenancy=off', 'ojs.strict_queues=off', 'ojs.worker=off',
        'ojs.tenancy=nonsense', 'ojs.tenant=bad!') {
        my ($setting) = lc($option) =~ /(\w+)=/;
        like($as->('eve', "-c $option", $push), qr/FATAL:.*parameter "ojs\.$setting"/i,
            "$name: the session of a client that says $option ends");
    }
    like($as->('eve', '', "set ojs.tenancy = off; $push"),
        qr/meta\.tenant_id is missing|permission denied to set parameter/, "$name: nor does SET undo it");
    for my $set (q{ojs.tenant = 'bad tenant'}, 'ojs.default_lease = 1') {
        my ($setting) = $set =~ /(\w+) =/;
        like($as->('eve', '', "\\set ON_ERROR_STOP on\nset $set;\n$push"),
            $preloaded == $node ? qr/ERROR:.*"ojs\.$setting"/ : qr/FATAL:.*"ojs\.$setting"/,
            "$name: no session goes on that has said $set");
    }
    is($as->('eve', '-c ojs.default_lease=50s -c ojs.tenant=acme',
        q{select state from ojs.push('a.b', queue => 'q'); show ojs.default_lease; show ojs.strict_queues}),
        "available\n50s\non", "$name: what anybody may set is set, and the rest is as the database says");
    is($as->($node->safe_psql('postgres', 'select current_user'), '-c ojs.tenancy=off -c ojs.strict_queues=off', $push),
        'available', "$name: a superuser may set all");
}
done_testing();
