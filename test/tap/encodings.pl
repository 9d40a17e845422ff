# encodings.pl: databases whose encoding is not UTF8: what they cannot hold is refused in words that name the encoding,
# and nobody tries it again for ever. HTTP-05.
use strict;
use warnings;
use Ojs;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = server('encodings', extension => 0, conf => "fsync = off\n");
my %held = (
    SQL_ASCII => [q("caf\u0065"), q("caf\u00e9")],
    LATIN1 => [q("caf\u00e9"), q("\u20ac")],
    EUC_JP => [q("\u3042"), q("\u20ac")],
);
for my $encoding (sort keys %held) {
    my ($good, $bad) = @{ $held{$encoding} };
    $node->safe_psql('postgres',
        "create database \"db_$encoding\" template template0 encoding '$encoding' lc_collate 'C' lc_ctype 'C'");
    my ($code, undef, $err) = $node->psql("db_$encoding", 'create extension ojs');
    is($code, 0, "$encoding: the extension can be created");
    like($err, qr/WARNING: .*encoding $encoding .*\n.*HINT: .*UTF8/, "$encoding: and warns HTTP-05");
    my $http = sub {
        my ($path, $body) = @_;
        return $node->safe_psql("db_$encoding", "select status, body::jsonb #>> '{error,retryable}',
            body::jsonb #>> '{error,message}' from ojs.http('POST', '$path',
            '{\"Content-Type\": \"application/json\"}', \$body\$$body\$body\$)");
    };
    like($http->('/ojs/v1/jobs', qq({"type": "a.b", "args": [$good]})), qr/^201\|/, "$encoding: holds $good HTTP-05");
    for my $case (['/ojs/v1/jobs', qq({"type": "a.b", "args": [$bad]})],
        ['/ojs/v1/jobs/batch', qq({"jobs": [{"type": "a.b", "args": [$bad]}]})],
        ['/ojs/v1/workflows', qq({"type": "chain", "name": $bad, "steps": [{"type": "a.b", "args": []}]})]) {
        like($http->(@$case), qr/^400\|false\|.*encoding $encoding/,
            "$encoding: $bad at $case->[0] is refused for good, by the name of the encoding HTTP-05");
    }
    is($node->safe_psql("db_$encoding", 'select count(*) from ojs.jobs'), 1, "$encoding: nothing of it is stored");
}
$node->safe_psql('postgres', q{create database utf template template0 encoding 'UTF8' lc_collate 'C' lc_ctype 'C'});
my ($code, undef, $err) = $node->psql('utf', 'create extension ojs');
is("$code $err", '0 ', 'UTF8: nothing is warned of HTTP-05');
$node->stop;
done_testing();
