/*
 * canonical.h: RFC 8785 canonical JSON and the fingerprint of a job's uniqueness policy.
 */
#pragma once

#include "ojs/job/envelope.h"

namespace ojs
{

/*
 * What the canonical text is for. `rounded` takes numbers as RFC 8785 does, as doubles. `exact` is for what is hashed:
 * it refuses, with UNIQUE_KEY_INVALID, an integer beyond 2^53-1 and every number whose canonical form has another
 * value, since two jobs would merge.
 */
enum class Numbers { rounded, exact };

/* RFC 8785 text of a JSON value, strings and keys in NFC first; appended to `out`, in UTF-8. Errors name `field`. */
void canonical_json(const JsonbContainer *json, Numbers numbers, const char *field, StringInfo out);

/* Like the function above, but for a value inside a document. */
void canonical_value(const JsonbValue &value, Numbers numbers, const char *field, StringInfo out);

/* The parts: text in NFC as UTF-8 (the same bytes where they are so already), quoted text, the order of keys. */
std::string_view canonical_text(std::string_view text, Code code, const char *field);
void put_quoted(StringInfo out, std::string_view canonical_text);
bool canonical_less(std::string_view a, std::string_view b);

/* A list of keys, in NFC, sorted, each once. */
struct Names {
    const std::string_view *at;
    int n; /* 0: no list, or an empty one */
};

/* A uniqueness policy, checked (UNQ-01, UNQ-02, R-45, R-46). */
enum class OnConflict {
    reject,
    replace,
    replace_except_schedule,
    ignore,
    update, /* from here on: push/update.h */
    update_except_schedule,
    merge,
    merge_except_schedule
};
struct UniquePolicy {
    bool by_queue, by_args, by_meta;
    Names args_keys; /* none: all of args */
    Names meta_keys;
    std::optional<Duration> period;
    int states; /* bit per State */
    OnConflict on_conflict;
};
static_assert(std::is_trivially_destructible_v<UniquePolicy>);
UniquePolicy read_unique_policy(const Jsonb *policy);

/* UNIQUE_KEY_INVALID for a period of more than 100 years, which jobs that were stored before may have. */
void check_unique_period(const Jsonb *policy);

/* Whether a job of that time still counts: its period begins with it. */
inline bool
within_period(const UniquePolicy &policy, TimestampTz created_at, TimestampTz now)
{
    return !policy.period || time_after(created_at, *policy.period) > now;
}

/*
 * The canonical object of the policy's dimensions, in UTF-8, and its SHA-256; of an envelope that validate() has seen.
 */
void fingerprint_input(const Envelope &envelope, const UniquePolicy &policy, StringInfo out);
struct Fingerprint {
    uint8 bytes[32];
};
Fingerprint fingerprint(const Envelope &envelope, const UniquePolicy &policy);

} // namespace ojs
