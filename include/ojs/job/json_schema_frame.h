/*
 * json_schema_frame.h: what the parts of a validation have in common (json_schema.cpp, json_schema_values.cpp).
 */
#pragma once

#include "ojs/job/json_schema.h"

namespace ojs
{

constexpr int64 max_schema_steps = 1000000;
constexpr size_t max_schema_memory = 64 * 1024 * 1024; /* of the context of a validation */
constexpr int64 steps_of_compilation = 100;

/* Where in the value a schema is applied: a name or an index below another. */
struct Path {
    const Path *up; /* null: the value itself, whose name is `key` */
    std::string_view key;
    int64 index; /* -1: `key` counts */
};

struct Validation {
    FindSchema find;
    SchemaErrors errors;
    int quiet; /* above 0: what fails is only counted */
    int64 steps;
    bool exhausted;
    int n_patterns;
    const char *patterns[32]; /* where in their schemas the last patterns stand */
};

struct Frame {
    Validation &v;
    const SchemaDocument &document;
    const JsonbContainer *schema;
    const JsonbValue &value;
    const Path &at;
    int depth;
};

/* Takes steps from what is left. Returns false if that was too little. */
bool spend(Validation &v, int64 steps);

/* Adds a sentence that begins with the place: "args[0].amount" and " must be integer, not string". Returns false. */
bool fault(const Frame &frame, const char *format, ...) pg_attribute_printf(2, 3);

inline int64
count_of(const JsonbValue &container)
{
    return static_cast<int64>(JsonContainerSize(container.val.binary.data));
}

/* A bound of a count. What is beyond all counts is as good as none. Returns false if `n` is out of it. */
bool check_count(const Frame &frame, int64 n, bool at_most, const JsonbValue &of, const char *things);

bool check_unique(const Frame &frame);

/* Keywords that need no other schema and no part of the value. Returns true for any other keyword. */
bool check_scalar(const Frame &frame, Keyword keyword, const JsonbValue &of);

/* Whether a text matches a pattern; what it costs is spent. */
bool matches(Validation &v, std::string_view pattern, std::string_view text);

} // namespace ojs
