/*
 * targets.cpp: what test/fuzz/run feeds with inputs: the code of ojs that reads what callers write, without its tables.
 *
 * The library made of this and of the sources under test is loaded by a server in single-user mode, so the server's
 * functions are the real ones. ojs_fuzz(target, arguments) hands its session over to libFuzzer. An input may raise an
 * error that a caller is meant to see: SQLSTATE class OJ or 22. Any other error, a broken property, undefined
 * behaviour, and more than a second or 64 MB for one input are findings: they end the process, and libFuzzer keeps the
 * input.
 */
#include <csignal>
#include <cstdio>

#include "ojs/job/canonical.h"
#include "ojs/job/json_schema.h"
#include "ojs/job/limit_policy.h"
#include "ojs/job/retry_policy.h"
#include "ojs/job/version.h"
#include "ojs/pg/settings.h"
#include "ojs/upkeep/cron.h"

#include "inputs.h"

extern "C" int LLVMFuzzerRunDriver(int *argc, char ***argv, int (*callback)(const uint8_t *data, size_t size));

using namespace ojs;

namespace
{

constexpr TimestampTz at = INT64CONST(820454400000000); /* 2026-01-01 */
constexpr double most_seconds = 1;
constexpr Size most_bytes = 64 * 1024 * 1024;

[[noreturn]] void
finding(const char *what)
{
    fprintf(stderr, "finding: %s\n", what);
    abort();
}

void
require(bool good, const char *what)
{
    if (!good)
        finding(what);
}

/* Returns whether the call succeeds. An error that callers are not meant to see is a finding. */
template <typename Call>
bool
succeeds(Call call)
{
    MemoryContext context = CurrentMemoryContext;
    volatile bool good = true;

    PG_TRY();
    {
        call();
    }
    PG_CATCH();
    {
        MemoryContextSwitchTo(context);
        ErrorData *error = CopyErrorData();
        FlushErrorState();
        const char *state = unpack_sql_state(error->sqlerrcode);
        if (strncmp(state, "OJ", 2) != 0 && strncmp(state, "22", 2) != 0)
            finding(psprintf("%s: %s", state, error->message));
        good = false;
    }
    PG_END_TRY();
    return good;
}

/* --- targets --- */

void
fuzz_envelope(std::string_view input)
{
    Jsonb *json = json_in(input);
    Envelope envelope = empty_envelope();
    Jsonb *request = nullptr;

    if (json == nullptr)
        return;
    if (!succeeds([&] {
            envelope_from_json(json, at, false, envelope);
            if (!envelope.has_id)
                assign_ids(&envelope, 1);
            request = request_json(envelope);
        }))
        return;
    /* Hooks are given it as JSON, which reads the same. */
    Envelope again = empty_envelope();
    require(succeeds([&] { envelope_from_json(request, at, false, again); }) ||
                text_bytes(request) > settings.max_envelope_size,
            "what request_json() makes is refused");
    if (text_bytes(request) <= settings.max_envelope_size)
        require(same(request, request_json(again)), "what request_json() makes reads differently");

    if (!succeeds([&] { validate(envelope); }))
        return;
    if (envelope.retry != nullptr)
        require(succeeds([&] { (void)read_retry_policy(envelope.retry); }),
                "a retry policy is refused after validate()");
    if (envelope.unique_policy != nullptr)
        (void)succeeds([&] { (void)fingerprint(envelope, read_unique_policy(envelope.unique_policy)); });
}

void
put_canonical(const Jsonb *json, Numbers numbers, StringInfo out)
{
    initStringInfo(out);
    canonical_json(root_of(json), numbers, "value", out);
}

void
require_canonical(StringInfo text, const char *what)
{
    StringInfoData again;
    auto *json = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(text->data)));
    put_canonical(json, Numbers::rounded, &again);
    require(again.len == text->len && memcmp(again.data, text->data, text->len) == 0, what);
}

void
fuzz_canonical(std::string_view input)
{
    constexpr int64 worth_a_text = 1024 * 1024;
    Jsonb *json = json_in(input);
    StringInfoData rounded;
    StringInfoData exact;

    if (json == nullptr)
        return;
    int64 bytes = text_bytes(json);
    if (bytes < worth_a_text)
        require(strlen(JsonbToCString(nullptr, &json->root, VARSIZE(json))) == static_cast<size_t>(bytes),
                "text_bytes() differs from the length of the text");
    if (succeeds([&] { put_canonical(json, Numbers::rounded, &rounded); }))
        require(succeeds([&] { require_canonical(&rounded, "canonical text is not canonical"); }),
                "canonical text is refused");
    if (succeeds([&] { put_canonical(json, Numbers::exact, &exact); }))
        require(rounded.len == exact.len && memcmp(rounded.data, exact.data, exact.len) == 0,
                "exact differs from rounded");
}

/* [policy, args, meta, queue] */
void
fuzz_unique(std::string_view input)
{
    Jsonb *json = json_in(input);
    StringInfoData text;

    if (json == nullptr)
        return;
    initStringInfo(&text);
    (void)succeeds([&] {
        Envelope envelope = empty_envelope();
        envelope.type = "a.b";
        envelope.unique_policy = element(json, 0);
        envelope.args = element(json, 1);
        envelope.meta = element(json, 2);
        validate(envelope);
        if (envelope.unique_policy == nullptr)
            return;
        fingerprint_input(envelope, read_unique_policy(envelope.unique_policy), &text);
        require_canonical(&text, "what is hashed is not canonical");
    });
}

/* [policy, base, error] */
void
fuzz_retry(std::string_view input)
{
    Jsonb *json = json_in(input);
    RetryPolicy policy;
    ReportedError error = {};
    Jsonb *effective = nullptr;

    if (json == nullptr)
        return;
    /* Without an error nothing is reported: ojs.fail refuses null. */
    const Jsonb *given = element(json, 2);
    bool reported = given != nullptr && succeeds([&] { error = read_error(given, 1, at); });
    if (reported)
        require(is_object(error.stored), "a stored error is no object");
    if (!succeeds([&] {
            Jsonb *merged = merge_retry_policy(element(json, 1), element(json, 0));
            check_retry_names(merged);
            policy = read_retry_policy(merged);
            effective = effective_retry_policy(merged);
        }))
        return;
    require(policy.max_ms >= policy.initial_ms && policy.initial_ms > 0, "a policy's intervals contradict each other");
    require(same(effective, effective_retry_policy(effective)), "an effective policy is not complete");
    require(succeeds([&] { (void)read_retry_policy(effective); }), "an effective policy is refused");
    for (int n : {INT_MIN, 0, 1, 2, 10, 1000, INT_MAX}) {
        int64 delay = retry_delay_ms(policy, n);
        require(delay >= 1 && delay <= policy.max_ms, "a delay is out of bounds");
        if (reported)
            (void)retry_verdict(policy, error, n);
    }
}

void
fuzz_limit(std::string_view input)
{
    Jsonb *json = json_in(input);

    if (json == nullptr)
        return;
    (void)succeeds([&] {
        JsonbValue value = json_of(json);
        check_rate_limit(value);
        each_limit(value, [](const LimitPolicy &policy) {
            require(policy.concurrency >= -1 && policy.rate.limit >= 0 && policy.rate.period_us >= 0 &&
                        policy.throttle.limit >= 0 && policy.throttle.period_us >= 0,
                    "a limit is negative");
        });
    });
}

void
fuzz_time(std::string_view input)
{
    TimeText text;
    TimestampTz moment;
    int64 ms;

    if (succeeds([&] { moment = parse_timestamp(input, at, "field"); })) {
        for (bool plain : {true, false}) {
            std::string_view shown = format_timestamp(moment, plain, text);
            int year;
            if (!shown.empty() && sscanf(text.text, "%4d-", &year) == 1 && year <= 9999 &&
                moment >= -INT64CONST(63082281600) * 1000000 &&
                moment < INT64CONST(252455616000) * 1000000) { /* years 1 to 9999 */
                require(succeeds([&] { ms = parse_timestamp(shown, at, "field"); }), "a timestamp of ours is refused");
                require(ms == moment, "a timestamp of ours reads differently");
            }
        }
    }
    if (succeeds([&] { ms = parse_duration_ms(input, Code::invalid_payload, "field"); })) {
        int64 again = -1;
        require(ms >= 0 && ms <= max_duration_ms, "a duration is out of bounds");
        std::string_view shown = format_duration(ms, text);
        require(succeeds([&] { again = parse_duration_ms(shown, Code::invalid_payload, "field"); }) && again == ms,
                "a duration of ours reads differently");
    }
    (void)succeeds([&] { (void)parse_duration(input, Code::invalid_payload, "field"); });
    (void)parse_lease_id(cstring_to_text_with_len(input.data(), static_cast<int>(input.size())), &ms);
}

/* Three lines: the expression, a zone by its number, microseconds from the beginning of 2000. */
void
fuzz_cron(std::string_view input)
{
    static const char *const zones[] = {"UTC",
                                        "Europe/Berlin",
                                        "America/New_York",
                                        "Australia/Lord_Howe",
                                        "Pacific/Apia",
                                        "America/Santiago",
                                        "Asia/Kolkata",
                                        "Africa/Casablanca",
                                        "Antarctica/Troll",
                                        "America/Nuuk"};
    std::string_view expression = line(input);
    std::string_view zone_text = line(input);
    int64 after = 0;
    CronExpression cron;

    std::from_chars(input.data(), input.data() + input.size(), after);
    after = std::clamp<int64>(after, MIN_TIMESTAMP, END_TIMESTAMP - 1);
    const pg_tz *zone =
        pg_tzset(zones[zone_text.empty() ? 0 : static_cast<unsigned char>(zone_text[0]) % lengthof(zones)]);
    if (!succeeds([&] { cron = parse_cron(expression); }))
        return;
    if (cron.every_us != 0) {
        require(cron.every_us >= USECS_PER_SEC && cron.every_us <= max_duration_ms * 1000,
                "an interval is out of bounds");
        return;
    }
    (void)succeeds([&] {
        CronNext next = next_run(cron, zone, after);
        if (!next.run_at)
            return;
        require(*next.run_at > after, "the next run is not later");
        require(!next.skip_at || *next.skip_at < *next.run_at, "skipped after the run");
        require(next_run(cron, zone, *next.run_at - 1).run_at == next.run_at,
                "the next run depends on where one looks from");
    });
}

/* The other schema that a $ref may name. */
const Jsonb *registered;

const Jsonb *
find_schema(std::string_view uri)
{
    return uri == "urn:other" ? registered : nullptr;
}

/* [schema, value, another schema] */
void
fuzz_schema(std::string_view input)
{
    Jsonb *json = json_in(input);
    Jsonb *schema = json == nullptr ? nullptr : element(json, 0);
    Jsonb *value = json == nullptr ? nullptr : element(json, 1);

    if (schema == nullptr)
        return;
    registered = element(json, 2);
    if (registered != nullptr && !succeeds([&] { check_json_schema(registered, find_schema); }))
        registered = nullptr;
    if (!succeeds([&] { check_json_schema(schema, find_schema); }))
        return;
    if (value == nullptr)
        value = json_in("null");
    require(succeeds([&] {
                SchemaErrors errors = validate_json(schema, root_value(value), "args", find_schema);
                require(errors.n >= 0 && errors.n <= max_schema_errors, "more errors than there is room for");
                for (int i = 0; i < errors.n; i++) {
                    size_t length = strlen(errors.text[i]);
                    require(length < 2000, "a sentence is too long");
                    require(pg_verify_mbstr(PG_UTF8, errors.text[i], static_cast<int>(length), true),
                            "a sentence is no text");
                }
            }),
            "a schema that was accepted cannot be applied");
}

/* Three lines: two versions and a range. */
void
fuzz_version(std::string_view input)
{
    std::string_view a_text = line(input);
    std::string_view b_text = line(input);
    VersionKey a;
    VersionKey b;
    VersionRange range;
    bool has_a = read_version(a_text, a);
    bool has_b = read_version(b_text, b);

    require(!has_a || (a.n > 0 && a.n <= static_cast<int>(sizeof a.bytes)), "a key is longer than its room");
    if (has_a && has_b) {
        auto sign = [](int n) { return (n > 0) - (n < 0); };
        int order = sign(compare(a, b));
        require(order == -sign(compare(b, a)), "two versions are each before the other");
        require(compare(a, a) == 0, "a version differs from itself");
        for (const auto &[prefix, wanted] : {std::pair<const char *, bool>{"", order == 0},
                                             {"= ", order == 0},
                                             {">=", order >= 0},
                                             {"> ", order > 0},
                                             {"<=", order <= 0},
                                             {"<", order < 0}}) {
            const char *text = psprintf("%s%.*s", prefix, static_cast<int>(b_text.size()), b_text.data());
            require(read_range(text, range), "a version is no range");
            require(in_range(range, a_text) == wanted,
                    "a range holds what it should not, or lacks what it should hold");
        }
    }
    if (read_range(input, range)) {
        require(range.n >= 0 && range.n <= VersionRange::max_bounds, "a range has more bounds than room");
        (void)in_range(range, a_text);
        (void)in_range(range, input);
    }
}

struct Target {
    const char *name;
    void (*run)(std::string_view input);
};
constexpr Target targets[] = {{"envelope", fuzz_envelope}, {"canonical", fuzz_canonical}, {"unique", fuzz_unique},
                              {"retry", fuzz_retry},       {"limit", fuzz_limit},         {"time", fuzz_time},
                              {"cron", fuzz_cron},         {"schema", fuzz_schema},       {"version", fuzz_version}};
const Target *target;
MemoryContext of_input;

double
seconds()
{
    timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

} // namespace

extern "C" {
PG_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);
PGDLLEXPORT Datum ojs_fuzz(PG_FUNCTION_ARGS);
PG_FUNCTION_INFO_V1(ojs_fuzz);

void
_PG_init(void)
{
    guc_init();
}

static int
run_input(const uint8_t *data, size_t size)
{
    /* A copy of its own, with a byte after it that reading too far would take for one of the input. */
    MemoryContext before = MemoryContextSwitchTo(of_input);
    char *copy = static_cast<char *>(palloc(size + 1));
    double began = seconds();

    memcpy(copy, data, size);
    copy[size] = '9';
    target->run({copy, size});
    if (seconds() - began >= most_seconds) { /* once may be the machine's */
        began = seconds();
        target->run({copy, size});
    }
    require(seconds() - began < most_seconds, "an input takes too long");
    require(MemoryContextMemAllocated(of_input, true) < most_bytes, "an input takes too much memory");
    MemoryContextSwitchTo(before);
    MemoryContextReset(of_input);
    return 0;
}

/* ojs_fuzz(target text, arguments text[]) */
Datum
ojs_fuzz(PG_FUNCTION_ARGS)
{
    char *name = text_to_cstring(PG_GETARG_TEXT_PP(0));
    Datum *words;
    int n;

    for (const Target &candidate : targets)
        if (strcmp(candidate.name, name) == 0)
            target = &candidate;
    if (target == nullptr)
        elog(ERROR, "there is no target \"%s\"", name);
    deconstruct_array(PG_GETARG_ARRAYTYPE_P(1), TEXTOID, -1, false, TYPALIGN_INT, &words, nullptr, &n);
    auto **arguments = static_cast<char **>(palloc((n + 2) * sizeof(char *)));
    arguments[0] = pstrdup("ojs_fuzz");
    for (int i = 0; i < n; i++)
        arguments[i + 1] = TextDatumGetCString(words[i]);
    arguments[++n] = nullptr;

    /* libFuzzer has handlers of its own, but only where there are none. */
    for (int number : {SIGALRM, SIGFPE, SIGINT, SIGTERM, SIGUSR1, SIGUSR2})
        pqsignal(number, SIG_DFL);
    of_input = AllocSetContextCreate(TopMemoryContext, "input", ALLOCSET_DEFAULT_SIZES);
    exit(LLVMFuzzerRunDriver(&n, &arguments, run_input));
}
}
