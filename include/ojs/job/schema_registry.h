/*
 * schema_registry.h: whether the args of a job fit the schema that is registered for its type.
 */
#pragma once

#include "ojs/job/envelope.h"

namespace ojs
{

/*
 * For a job whose envelope is valid; `args` as its producer gave them. In the mode `strict` raises
 * SCHEMA_VALIDATION_FAILED; in `warn` emits a WARNING, and keeps what is wrong in the envelope. A job whose type has no
 * schema costs one look at a number.
 */
void check_schema_of(Envelope &envelope, const Jsonb *args);

/* A reply of a push with the warnings of its envelope, where there are any. */
Jsonb *with_schema_warnings(Jsonb *reply, const Envelope &envelope);

} // namespace ojs
