/*
 * json_text.h: JSON as text, before jsonb reads it: what jsonb cannot hold, and where.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

/* The first thing in a JSON text that jsonb cannot hold, or that is no JSON. */
struct JsonFault {
    const char *message; /* null: nothing is wrong */
    const char *hint;
    const char *field; /* the path of the member; empty for the whole */
    const char *found; /* the character or token; null where there is none to show */
};

JsonFault find_fault(std::string_view json);

constexpr int most_json_levels = 1000; /* far less than the server's stack allows */

/* The text with each such thing replaced: a character by U+FFFD, a number and NaN by a string, a value below so many
 * levels by a string. If the text is no JSON for another reason, what follows that place is as it was. */
text *without_faults(std::string_view json, int levels);

/* The same of a document with an array in its member "jobs": an element with a fault is replaced by null, and visit()
 * is told its index and its fault. Returns the fault of the rest, where that has one. */
JsonFault without_faulty_jobs(std::string_view json, StringInfo out, void (*visit)(int64, const JsonFault &, void *),
                              void *arg);

} // namespace ojs
