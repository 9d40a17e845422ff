/*
 * attribute_names.cpp: see attribute_names.h.
 */
#include "ojs/job/attribute_names.h"

#include "ojs/job/attributes.h"
#include "ojs/pg/error.h"
#include "ojs/pg/near_name.h"

namespace ojs
{

namespace
{

struct Name {
    std::string_view name;
    Attr attr;
};

/* In order, for the binary search. */
constexpr Name names[] = {
    {"activated_at", Attr::system},
    {"args", Attr::args},
    {"attempt", Attr::system},
    {"cancelled_at", Attr::system},
    {"checkpoint", Attr::system},
    {"completed_at", Attr::system},
    {"created_at", Attr::system},
    {"dedup_fallback", Attr::deduplication_fallback},
    {"deduplicated", Attr::system},
    {"deduplicationFallback", Attr::deduplication_fallback},
    {"deduplicationKey", Attr::deduplication_key},
    {"deduplicationTtl", Attr::deduplication_ttl},
    {"deduplication_expires_at", Attr::system},
    {"deduplication_key", Attr::deduplication_key},
    {"deduplication_ttl", Attr::deduplication_ttl},
    {"deduplication_ttl_ms", Attr::deduplication_ttl},
    {"delay", Attr::delay},
    {"delay_ms", Attr::delay},
    {"delay_until", Attr::scheduled_at},
    {"deliveries", Attr::system},
    {"delivery", Attr::delivery},
    {"discarded_at", Attr::system},
    {"enqueue_ttl", Attr::enqueue_ttl},
    {"enqueued_at", Attr::system},
    {"error", Attr::system},
    {"errors", Attr::system},
    {"expires_at", Attr::expires_at},
    {"grace_period", Attr::grace_period},
    {"heartbeat_timeout", Attr::heartbeat_timeout},
    {"id", Attr::id},
    {"last_checkpoint", Attr::system},
    {"lease_expires_at", Attr::system},
    {"lease_id", Attr::system},
    {"max_attempts", Attr::max_attempts},
    {"meta", Attr::meta},
    {"metadata", Attr::metadata},
    {"next_attempt_at", Attr::system},
    {"options", Attr::options},
    {"ordering", Attr::ordering},
    {"orderingKey", Attr::ordering_key},
    {"ordering_key", Attr::ordering_key},
    {"parent_errors", Attr::system},
    {"parent_id", Attr::parent_id},
    {"parent_results", Attr::system},
    {"parent_results_truncated", Attr::system},
    {"pending", Attr::pending},
    {"previous_state", Attr::system},
    {"priority", Attr::priority},
    {"progress", Attr::system},
    {"progress_data", Attr::system},
    {"progress_message", Attr::system},
    {"progress_updated_at", Attr::system},
    {"queue", Attr::queue},
    {"rate_limit", Attr::rate_limit},
    {"result", Attr::system},
    {"result_expires_at", Attr::system},
    {"result_size_bytes", Attr::system},
    {"result_stored_at", Attr::system},
    {"result_ttl", Attr::result_ttl},
    {"retry", Attr::retry},
    {"retry_delay_ms", Attr::system},
    {"root_id", Attr::root_id},
    {"scheduled_at", Attr::scheduled_at},
    {"schema", Attr::schema},
    {"seq", Attr::system},
    {"specversion", Attr::specversion},
    {"started_at", Attr::system},
    {"state", Attr::system},
    {"tag", Attr::tag},
    {"tags", Attr::tags},
    {"taskDeduplicationFallback", Attr::deduplication_fallback},
    {"taskDeduplicationTtl", Attr::deduplication_ttl},
    {"timeout", Attr::timeout},
    {"timeout_ms", Attr::timeout},
    {"total_timeout", Attr::total_timeout},
    {"type", Attr::type},
    {"unique", Attr::unique},
    {"version", Attr::version},
    {"visibility_timeout", Attr::visibility_timeout},
    {"visibility_timeout_ms", Attr::visibility_timeout},
    {"worker", Attr::system},
    {"workflow_callback", Attr::system},
    {"workflow_id", Attr::system},
    {"workflow_root_id", Attr::system},
    {"workflow_step", Attr::system},
};

constexpr bool
before(const Name &a, std::string_view b)
{
    return a.name < b;
}
static_assert(std::is_sorted(std::begin(names), std::end(names),
                             [](const Name &a, const Name &b) { return a.name < b.name; }));

} // namespace

Attr
attr_named(std::string_view name)
{
    const Name *found = std::lower_bound(std::begin(names), std::end(names), name, before);
    return found != std::end(names) && found->name == name ? found->attr : Attr::unknown;
}

void
refuse_near_name(std::string_view unknown)
{
    if (unknown.starts_with("x_") || unknown.starts_with("x-")) /* x_queue is somebody's own, as it says */
        return;
    NearName near = near_name(unknown);
    for (const Name &name : names)
        if (name.attr != Attr::system && name.name.find('K') == std::string_view::npos) /* aliases: deduplicationKey */
            offer(near, name.name);
    if (near.known.empty())
        return;
    const char *known = pnstrdup(near.known.data(), near.known.size());
    raise_field(Code::invalid_payload, clipped(unknown),
                psprintf("Write %s, or give what is your own another name, or a place in meta.", known),
                "%s is not known: is it %s?", clipped(unknown), known);
}

} // namespace ojs
