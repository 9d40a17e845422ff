/*
 * version.h: versions of job types: 2, 2.0, 2.0.0 and 2.0.0-rc.1 in the order of Semantic Versioning.
 */
#pragma once

#include "ojs/pg/json.h"

namespace ojs
{

constexpr size_t max_version_length = 64;

/* A version as bytes that compare as versions do: 2 equals 2.0 and 2.0.0, and 2.0.0-rc.1 is before them. */
struct VersionKey {
    uint8 bytes[3 * 4 + 10 * max_version_length];
    int n;
};
static_assert(std::is_trivially_destructible_v<VersionKey>);

/* Returns false if it is no version. */
bool read_version(std::string_view text, VersionKey &key);

int compare(const VersionKey &a, const VersionKey &b);

/* What versions somebody takes: "*", one version, or bounds such as ">=1.0 <3.0", with spaces or commas between. */
struct VersionRange {
    enum Bound : uint8 { equal, at_least, above, at_most, below };
    static constexpr int max_bounds = 4;
    int n; /* 0: any version */
    Bound bound[max_bounds];
    VersionKey key[max_bounds];
};
static_assert(std::is_trivially_destructible_v<VersionRange>);

/* Returns false if it is no range. */
bool read_range(std::string_view text, VersionRange &range);

/* Whether a version is in the range. What is no version is in "*" only. */
bool in_range(const VersionRange &range, std::string_view version);

/* The version among the options of a job, as text; null data: it has none. */
std::string_view version_in(const Jsonb *options);

} // namespace ojs
