/*
 * error.h: the catalogue of errors that ojs raises, and the one way to raise them.
 *
 * Every error carries an OJS code, an SQLSTATE of class OJ, a message that names
 * the field or the job, a DETAIL in JSON ({"code", "retryable", "details"}) and
 * a HINT. docs/reference/errors.md is the reader's copy of the table in error.cpp.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

enum class Code {
    invalid_payload,
    invalid_job_type,
    invalid_queue,
    invalid_args,
    invalid_metadata,
    invalid_state_transition,
    invalid_retry_policy,
    invalid_cron_expression,
    schema_validation_failed,
    payload_too_large,
    metadata_too_large,
    queue_name_too_long,
    job_type_too_long,
    batch_size_exceeded,
    unavailable,
    not_found,
    duplicate_job,
    job_already_completed,
    job_already_cancelled,
    queue_paused,
    lease_not_held,
    topic_not_a_queue,
    topic_exists_incompatible,
    result_too_large,
    schema_exists,
    workflow_not_found,
    invalid_workflow,
    workflow_ended,
    permission_denied,
    rate_limited,
    queue_full,
    tenant_limit_exceeded,
    unsupported_feature,
    unique_key_invalid,
};

/* What an error says beside its message: members of a JSON object. */
struct Details {
    StringInfoData json;
    StringInfoData logged; /* the same without what the server's log must not show; empty while there is nothing such */

    Details();
    Details &add(const char *key, std::string_view value);
    Details &add(const char *key, const char *value) { return add(key, std::string_view(value)); }
    Details &add(const char *key, int64 value);
    Details &add(const char *key, const pg_uuid_t &value);
    Details &add_unlogged(const char *key, std::string_view value);               /* last */
    Details &add_unlogged_list(const char *key, const char *const *texts, int n); /* last */
};
static_assert(std::is_trivially_destructible_v<Details>);

/* Ends the call. `hint` is a full sentence, or null. */
[[noreturn]] void raise(Code code, const Details &details, const char *hint, const char *message, ...)
    pg_attribute_printf(4, 5);

/* Like raise(), but emits a NOTICE, and the call goes on. */
void tell(Code code, const Details &details, const char *hint, const char *message, ...) pg_attribute_printf(4, 5);

/* Like tell(), but a WARNING. */
void warn(Code code, const Details &details, const char *hint, const char *message, ...) pg_attribute_printf(4, 5);

/* The usual complaint about one field of an envelope or one parameter. */
[[noreturn]] void raise_field(Code code, const char *field, const char *hint, const char *message, ...)
    pg_attribute_printf(4, 5);

/*
 * An error that was caught, as JSON: its code, message, details, whether a repetition may help, and the hint. One that
 * is not of the catalogue (a hook raised it) has its SQLSTATE, and the code HOOK_ERROR.
 */
Jsonb *error_json(const ErrorData *error);

/* Whether an error that was caught is this one. */
bool is(const ErrorData *error, Code code);

/* While a batch is read: which of its jobs an error is about (-1: none). Any rollback sets it back. */
extern int error_item;

void error_init(); /* once, at load */

} // namespace ojs
