/*
 * request_json.cpp: from an Envelope to the JSON that envelope_from_json() reads: what hooks get to see of a push.
 */
#include "ojs/job/envelope.h"
#include "ojs/pg/json.h"

namespace ojs
{

namespace
{

void
add_time(ObjectBuilder &out, std::string_view name, TimestampTz at)
{
    TimeText buffer;
    std::string_view text = format_timestamp(at, false, buffer);

    if (text.empty())
        text = "infinity"; /* refused when it is read again */
    out.add(name, std::string_view(pnstrdup(text.data(), text.size()), text.size()));
}

} // namespace

Jsonb *
request_json(const Envelope &e)
{
    ObjectBuilder out;

    out.add("specversion", "1.0");
    if (e.options != nullptr)
        each_member(root_of(e.options),
                    [&out](std::string_view name, const JsonbValue &value) { out.add(name, value); });
    out.add("id", std::string_view(DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&e.id)))));
    if (e.type.data() != nullptr)
        out.add("type", e.type);
    out.add("queue", e.queue);
    out.add("priority", static_cast<int64>(e.priority));
    if (e.args != nullptr)
        out.add("args", e.args);
    if (e.meta != nullptr)
        out.add("meta", e.meta);
    else
        out.add("meta", ObjectBuilder().finish());
    if (e.scheduled_at)
        add_time(out, "scheduled_at", *e.scheduled_at);
    if (e.expires_at)
        add_time(out, "expires_at", *e.expires_at);
    if (e.timeout_ms)
        out.add("timeout", json_seconds(*e.timeout_ms)); /* and no timeout_ms: a hook that changed one would have two */
    if (e.pending)
        out.add("pending", json_bool(true));
    if (e.retry != nullptr)
        out.add("retry", e.retry);
    if (e.unique_policy != nullptr)
        out.add("unique", e.unique_policy);
    if (e.deduplication_key.data() != nullptr)
        out.add("deduplication_key", e.deduplication_key);
    if (e.deduplication_ttl_ms)
        out.add("deduplication_ttl", json_seconds(*e.deduplication_ttl_ms));
    return out.finish();
}

} // namespace ojs
