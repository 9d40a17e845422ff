/*
 * envelope.h: the OJS envelope: from what a caller gives to a row, checked, and from
 * rows back to ojs.job and to JSON.
 */
#pragma once

#include "ojs/pg/error.h"
#include "ojs/store/rows.h"

namespace ojs
{

/*
 * A job as a caller wants it. Members that point (args …) live in the memory
 * context of the call. Filled by envelope_from_json() or, field by field, by the
 * parameters of ojs.push(); checked by neither until validate().
 *
 * Both may be used on one envelope: ojs.push() sets what its parameters say and
 * then reads its `options`, which must not contradict them.
 */
struct UpdatedJob;
struct Envelope {
    int item;    /* which job of a batch it is, or -1 */
    bool has_id; /* the caller brought the id */
    pg_uuid_t id;
    std::optional<pg_uuid_t> parent; /* parent_id, which stays among the options */
    std::string_view type;           /* without an @version suffix once validated; null data: none was given */
    std::string_view queue;          /* "default" where absent */
    int priority;
    std::optional<TimestampTz> scheduled_at;
    std::optional<TimestampTz> expires_at;
    std::optional<int64> timeout_ms;
    bool pending;
    Jsonb *args;          /* always an array once validated; null before: none was given */
    Jsonb *received_args; /* as the producer gave them, where a hook has changed them; else null */
    Jsonb *meta;          /* an object, or null for none; never {} once validated */
    Jsonb *retry;         /* as given (null: none); checked by validate(), which also sees to at-most-once in it */
    Jsonb *unique_policy; /* as given; validate() only sees that it is an object */
    Jsonb *options; /* every other attribute as one object, null for none. Unknown ones as they came; of the known ones
                       specversion (unless "1.0"), schema, tags, version, tag, delivery, rate_limit as they came,
                       visibility_timeout_ms clamped, and grace_period, heartbeat_timeout, enqueue_ttl, total_timeout as
                       numbers of seconds */
    std::string_view deduplication_key; /* null data: none */
    std::optional<int64> deduplication_ttl_ms;
    int max_attempts;          /* set by validate() from retry, or the default 3 */
    int32 flags;               /* job_flag, set by validate(): all but job_has_history */
    bool checked_before;       /* it was stored to be pushed later: names were checked then, by the rules of then */
    bool measured;             /* its size has been checked already, as the JSON it came in */
    Jsonb *schema_warnings;    /* an array of what its args lack by their schema; null: nothing */
    const UpdatedJob *updated; /* the job in whose place it is stored (push/update.h); null: it is a new one */
};
static_assert(std::is_trivially_destructible_v<Envelope>);

Envelope empty_envelope();

/*
 * Reads an OJS envelope: top level and `options`, aliases, durations and
 * timestamps in their JSON forms; unknown attributes are kept; system attributes are ignored.
 * `now` is for times given as "+PT5S". Raises on what it cannot read, and on an
 * attribute that comes twice with different values.
 * With `parameters_only` (the options parameter of ojs.push) type and args may be
 * absent, the size is left to validate(), and what the envelope has already is what parameters say: another value
 * for it is refused.
 * Texts and JSON values of the envelope may point into `json`.
 */
void envelope_from_json(const Jsonb *json, TimestampTz now, bool parameters_only, Envelope &envelope);
/* The same of an object in a larger value, of which it takes no copy. */
void envelope_from_object(const JsonbValue &value, TimestampTz now, bool parameters_only, Envelope &envelope);

/* The way back: an envelope that was read as a JSON object that reads the same, each attribute once. */
Jsonb *request_json(const Envelope &envelope);

/* The tags parameter of ojs.push, to be set after its options; INVALID_PAYLOAD if those hold other tags. */
void set_tags(Envelope &envelope, ArrayType *tags);

/* Checks everything that can be checked without a table; fills max_attempts and flags. */
void validate(Envelope &envelope);
void validate_priority(int priority);

/* Puts an envelope into its tenant's part of its queue; called by validate() if there are tenants (queue/tenant.cpp).
 */
extern void (*give_tenant)(Envelope &envelope);

/* INVALID_QUEUE for what cannot be a queue's name. */
void validate_queue_name(std::string_view name, const char *field = "queue");

/* PAYLOAD_TOO_LARGE for a whole envelope as it came: an object whose text exceeds ojs.max_envelope_size. */
void check_envelope_size(const JsonbContainer *job);

/* Gives ids to the envelopes that have none. */
void assign_ids(Envelope *envelopes, int n);

/* INVALID_PAYLOAD for an id that is no lower case UUIDv7. */
[[noreturn]] void raise_bad_id(const char *field = "id");

constexpr size_t max_queue_name = 128;
constexpr int min_priority = -100;
constexpr int max_priority = 100;

/* --- times (duration.cpp) --- */

/* No duration is longer than 100 years. So a timestamp plus one never overflows. */
constexpr int64 max_duration_ms = INT64CONST(36525) * 86400000;

/* A duration as it was given: months (a year has twelve), and a length of time beside them. */
struct Duration {
    int32 months;
    int64 ms;
};
/* The length where there is no start to count from: 30 days a month, 365 a year. At most max_duration_ms. */
int64 fixed_ms(const Duration &duration);
/* When a duration that begins at `start` is over: months by the calendar in UTC, as the server adds an interval. */
TimestampTz time_after(TimestampTz start, const Duration &duration);

/* Text as JSON scalars carry it: RFC 3339 with a zone, or "+P…" from now; ISO 8601 durations, never negative.
 * Raise with `field`. A timestamp raises INVALID_PAYLOAD. */
TimestampTz parse_timestamp(std::string_view text, TimestampTz now, const char *field);
Duration parse_duration(std::string_view text, Code code, const char *field); /* refuses more than 100 years */
int64 parse_duration_ms(std::string_view text, Code code, const char *field); /* the same, where there is no start */
/* One that was stored before: more than 100 years, which were let in once, count as max_duration_ms + 1. */
Duration stored_duration(std::string_view text, Code code, const char *field);
/* A duration as dashboards write it: a whole number and s, m, h, d or w, such as 24h. Returns false if it is none.
 * More than 100 years are max_duration_ms + 1. */
bool parse_short_duration_ms(std::string_view text, int64 &ms);
int64 refuse_too_long(int64 ms, Code code, const char *field); /* returns what is not */
int64 interval_ms(const Interval *interval); /* as fixed_ms() has it; parts of a millisecond count as one */
/* Parameters, which must not be negative, nor longer than 100 years: a length, and a time from `start` on. */
int64 interval_arg_ms(const Interval *interval, const char *field);
TimestampTz interval_arg_end(TimestampTz start, const Interval *interval, const char *field);
int64 interval_arg_from(TimestampTz start, const Interval *interval, const char *field);
Interval *interval_of(int64 ms);
Interval *interval_of(const Duration &duration);

struct TimeText {
    char text[48];
};
/* "PT1.5S". The results point into `buffer`, and end in a NUL. */
std::string_view format_duration(int64 ms, TimeText &buffer);
/* RFC 3339 in UTC with milliseconds, or microseconds where there are any; `plain` leaves out a fraction of zero, so
 * that a caller's own "…:59Z" comes back as it was. Empty for infinity. */
std::string_view format_timestamp(TimestampTz at, bool plain, TimeText &buffer);

/* A caller's text for an error message: its first 64 bytes, on one line. */
const char *clipped(std::string_view text);

/* --- errors of jobs (job_error.cpp) --- */

/* A JSON error as a worker reports it, in the form that is stored (ERR-A, R-35, R-40). The report of a failure lands:
 * members of a wrong type count as text where they describe the error, and are named in `ignored` where they decide. */
struct ReportedError {
    Jsonb *stored; /* code, type, message, backtrace, details, … */
    std::string_view type;
    std::string_view directive;              /* RETRY, DISCARD, DEAD_LETTER, FAIL, or empty */
    bool retryable;                          /* false only where the report says so */
    std::optional<TimestampTz> paused_until; /* rate_limit_until */
};
static_assert(std::is_trivially_destructible_v<ReportedError>);
constexpr int most_error_levels = 64; /* of a member of an error: clients have to read what is nested */
/* Raises INVALID_PAYLOAD where there is no report: null. */
void require_error(const Jsonb *json);
ReportedError read_error(const Jsonb *json, int attempt_number, TimestampTz now);

/* What an error of a timeout says more (TMO-01): kind is execution, total, enqueue_ttl or stalled; null: nothing. */
struct TimeoutFacts {
    const char *kind;
    int64 limit_ms;
    int64 elapsed_ms;
};
/* The server's own errors (ERR-05), in the same form. */
Jsonb *server_error(const char *type, const char *message, int attempt, TimestampTz now, TimeoutFacts facts = {});

/* --- what a stored job says of its times (deadlines.cpp); each looks into options only if the flags say so --- */

/* A job's time is over, by which of its limits, and what its discard is called. */
struct Expiry {
    TimestampTz at;
    const char *error_type;
    const char *message;
    const char *kind; /* of the timeout, for TimeoutFacts; null for expires_at */
    int64 limit_ms;
};

/* When a job that waits is discarded: the soonest of expires_at, total_timeout, and enqueue_ttl if it was never
 * delivered. */
std::optional<Expiry> expiry_of(const JobRow &job, int32 deliveries = 0);
std::optional<Expiry> total_expiry_of(const JobRow &job); /* only total_timeout, which also ends a job that runs */

int64 lease_ms_of(const JobRow &job);             /* its own lease length, or 0 */
int64 execution_timeout_ms_of(const JobRow &job); /* without grace */
/* When an attempt that started then is ended: its execution timeout and grace, or the total timeout. */
TimestampTz stop_at_of(const JobRow &job, TimestampTz started_at);
int64 heartbeat_timeout_ms_of(const JobRow &job); /* TMO-03 */
std::optional<int64>
result_ttl_ms_of(const JobRow &job); /* how long its result is shown; nothing: as long as it is kept */
constexpr int64 default_heartbeat_timeout_ms = 60 * 1000;

/* --- rendering (render.cpp, to_json.cpp) --- */

/* Where a job stands, beside its envelope; what render() needs to fill ojs.job. */
struct Status {
    State state;
    int64 queue;
    int32 attempt;
    int32 deliveries;
    bool has_history;
    std::optional<TimestampTz> enqueued_at;
    std::optional<TimestampTz> started_at;
    std::optional<TimestampTz> finished_at;
    std::optional<TimestampTz> next_attempt_at;
    std::optional<int64> retry_delay_ms;     /* from the last failure to the attempt after it (RET-13) */
    std::optional<TimestampTz> activated_at; /* from pending (SM-05) */
    std::optional<State> previous_state;     /* in the answer to a cancel only: what the job was (OP-20) */
    Jsonb *result;
    std::optional<TimestampTz> result_expires_at; /* then it is no longer shown; or never (RES-02) */
    Jsonb *error;
    Jsonb *errors;   /* array, oldest first */
    Jsonb *reported; /* or null: members that stand beside the options (reported.h) */
    text *worker;
    int64 token; /* of the lease, where active */
    TimestampTz lease_expires_at;
    std::optional<bool> deduplicated;
};
static_assert(std::is_trivially_destructible_v<Status>);

constexpr size_t max_ordering_key = 255; /* bytes */

constexpr int job_columns = 32;
constexpr int claimed_columns = 34;

/* Fills values[0..31] (ojs.job), or [0..33] with `claimed`. `queue_name` is the status's queue. Values may point into
 * the rows. */
void render(const JobRow &job, const Status &status, std::string_view queue_name, bool claimed, Datum *values,
            bool *nulls);

/* Like render(), but returns one datum of type ojs.job. */
Datum render_job(const JobRow &job, const Status &status, std::string_view queue_name);

/* What render() filled, as the JSON envelope. */
Jsonb *envelope_json(const Datum *values, const bool *nulls, bool claimed);
Jsonb *envelope_json(HeapTupleHeader row); /* an ojs.job or ojs.claimed_job */

/* The way back for what a hook may change of a claimed job: args, meta, and what has no column. False, and nothing is
 * changed, if it is no envelope any more. */
bool take_changes(const Jsonb *envelope, Datum *values, bool *nulls);

const char *state_name(State state);
text *lease_id(int64 token);                       /* "lease_" and hex */
bool parse_lease_id(const text *id, int64 *token); /* false: not in that form, so no lease has it */

} // namespace ojs
