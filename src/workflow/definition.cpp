/*
 * definition.cpp: see definition.h.
 */
#include "ojs/workflow/definition.h"

#include "ojs/job/attributes.h"
#include "ojs/job/envelope.h"
#include "ojs/pg/json.h"
#include "ojs/pg/settings.h"
#include "ojs/push/unique.h"
#include "ojs/push/update.h"
#include "ojs/queue/push_rules.h"
#include "ojs/queue/tenant.h"

namespace ojs
{

namespace
{

constexpr std::string_view kinds[] = {"chain", "group", "batch"};
constexpr std::string_view callback_names[] = {"on_complete", "on_success", "on_failure"};

struct Check {
    TimestampTz now;
    MemoryContext each; /* reset after each job */
    StringInfoData path;
    int jobs;
    Definition out;
    const char *tenant; /* of the jobs so far; null before the first */
};

[[noreturn]] void
refuse(const Check &check, const char *member, const char *hint, const char *message)
{
    const char *path = psprintf("%s%s%s", check.path.data, *member != '\0' ? "." : "", member);
    raise(Code::invalid_workflow, Details().add("field", path), hint, "%s: %s", path, message);
}

extern "C" void
say_path(void *path)
{
    errcontext("the job at %s of the workflow", static_cast<StringInfo>(path)->data);
}

template <typename Body>
void
below(Check &check, const char *step, Body body)
{
    int length = check.path.len;
    appendStringInfoString(&check.path, step);
    body();
    check.path.len = length;
    check.path.data[length] = '\0';
}

std::string_view
type_of(const JsonbContainer *object)
{
    JsonbValue type;
    return find_member(object, "type", type) && type.type == jbvString ? text_of(type) : std::string_view();
}

/* One of the three, and not a job that is called so: those have args. The same in ojs_store.is_workflow(). */
bool
is_workflow(const JsonbContainer *object)
{
    JsonbValue args;
    return std::find(std::begin(kinds), std::end(kinds), type_of(object)) != std::end(kinds) &&
           !find_member(object, "args", args);
}

void
note_queue(Check &check, std::string_view name)
{
    int64 id = queue_id(name);
    Definition &out = check.out;
    if (std::find(out.queues, out.queues + out.n_queues, id) != out.queues + out.n_queues)
        return;
    if (out.n_queues == max_workflow_queues)
        refuse(check, "", "Split the workflow.",
               psprintf("the jobs of a workflow may go to %d queues", max_workflow_queues));
    out.queues[out.n_queues++] = id;
}

/* All jobs of a workflow are one tenant's, or none is. */
void
note_tenant(Check &check, std::string_view tenant)
{
    if (check.tenant == nullptr)
        check.tenant =
            MemoryContextStrdup(GetMemoryChunkContext(check.path.data), pnstrdup(tenant.data(), tenant.size()));
    else if (tenant != check.tenant)
        refuse(check, "meta.tenant_id", "Make one workflow for each tenant.", "the workflow has jobs of two tenants");
}

void
check_job(Check &check, const JsonbValue &value)
{
    if (++check.jobs > max_workflow_jobs)
        refuse(check, "", "Split the workflow.", psprintf("a workflow may have %d jobs", max_workflow_jobs));
    MemoryContext old = MemoryContextSwitchTo(check.each);
    ErrorContextCallback context = {error_context_stack, say_path, &check.path};
    error_context_stack = &context;
    Envelope envelope = empty_envelope();
    envelope_from_json(jsonb_of(value), check.now, false, envelope);
    validate(envelope);
    if (envelope.has_id)
        refuse(check, "id", "Leave it out: a job of a workflow gets its id when its turn comes.",
               "the job brings an id");
    if (!envelope.deduplication_key.empty())
        refuse(check, "deduplication_key", "Leave it out, or give the job a unique policy.",
               "a job of a workflow has no deduplication key");
    if (envelope.unique_policy != nullptr && updates(uniqueness_of(envelope).policy))
        refuse(check, "unique", "Choose reject, ignore or replace.",
               "a job of a workflow cannot be stored in the place of another one");
    check_push(envelope);
    note_tenant(check, tenant_in(envelope.queue));
    if (has_tenants() && !tenant_in(envelope.queue).empty())
        (void)queue_for_push(envelope.queue); /* who sees the workflow is asked by its queues */
    else if (settings.strict_queues && find_queue(envelope.queue) == nullptr)
        raise_no_queue(envelope.queue);
    note_queue(check, envelope.queue);
    error_context_stack = context.previous;
    MemoryContextSwitchTo(old);
    MemoryContextReset(check.each);
}

/* A graph of steps with names, as the HTTP binding has them beside the three kinds. */
[[noreturn]] void
raise_graph(const char *path)
{
    raise(Code::unsupported_feature, Details().add("field", path), "Nest chains and groups instead.",
          "%s: graphs of steps (depends_on) are not supported", path);
}

bool
is_in_graph(const JsonbValue &step)
{
    JsonbValue others;
    return is_object(step) && find_member(step.val.binary.data, "depends_on", others);
}

void check_workflow(Check &check, const JsonbContainer *def, int depth);

void
check_members(Check &check, const JsonbContainer *def, const char *list, int most, int depth)
{
    JsonbValue members;
    if (!find_member(def, list, members) || !is_array(members) || JsonContainerSize(members.val.binary.data) == 0) {
        bool chain = strcmp(list, "steps") == 0;
        bool other = find_member(def, chain ? "jobs" : "steps", members);
        refuse(check, list, "Give an array of jobs, or of inner workflows.",
               !other  ? "at least one element is needed"
               : chain ? "a chain has steps, not jobs"
                       : "a group or a batch has jobs, not steps");
    }
    if (JsonContainerSize(members.val.binary.data) > static_cast<uint32>(most))
        refuse(check, list, "Split the workflow.", psprintf("more than %d elements", most));
    int i = 0;
    each_element(members.val.binary.data, [&](const JsonbValue &member) {
        below(check, psprintf(".%s[%d]", list, i++), [&] {
            if (!is_object(member))
                refuse(check, "", "Give a job such as {\"type\": \"email.send\", \"args\": []}.", "this is no object");
            if (is_in_graph(member))
                raise_graph(check.path.data);
            if (is_workflow(member.val.binary.data))
                check_workflow(check, member.val.binary.data, depth + 1);
            else
                check_job(check, member);
        });
    });
}

void
check_callbacks(Check &check, const JsonbContainer *def)
{
    JsonbValue callbacks;
    int n = 0;
    bool given = find_member(def, "callbacks", callbacks);
    if (given && !is_object(callbacks))
        refuse(check, "callbacks", "Give an object with on_complete, on_success or on_failure.", "this is no object");
    if (given)
        each_member(callbacks.val.binary.data, [&](std::string_view name, const JsonbValue &job) {
            below(check, ".callbacks", [&] {
                if (std::find(std::begin(callback_names), std::end(callback_names), name) == std::end(callback_names))
                    refuse(check, clipped(name), "Name on_complete, on_success or on_failure.",
                           "there is no such callback");
                below(check, psprintf(".%s", pnstrdup(name.data(), name.size())), [&] {
                    if (job.type == jbvNull)
                        return;
                    if (!is_object(job) || is_workflow(job.val.binary.data))
                        refuse(check, "", "Give a job such as {\"type\": \"email.send\", \"args\": []}.",
                               "a callback is a job");
                    check_job(check, job);
                    n++;
                });
            });
        });
    if (n == 0)
        refuse(check, "callbacks", "Name one, or make the batch a group.", "a batch needs at least one callback");
}

void
check_workflow(Check &check, const JsonbContainer *def, int depth)
{
    std::string_view type = type_of(def);
    JsonbValue value;

    check_stack_depth();
    if (depth > max_workflow_depth)
        refuse(check, "", "Make the inner workflows less deep.",
               psprintf("workflows may be nested %d deep", max_workflow_depth));
    if (find_member(def, "name", value) && (value.type != jbvString || value.val.string.len > max_workflow_name))
        refuse(check, "name", "Shorten it.", psprintf("a name is a string of at most %d bytes", max_workflow_name));
    if (type == "chain")
        check_members(check, def, "steps", max_workflow_steps, depth);
    else
        check_members(check, def, "jobs", max_workflow_jobs, depth);
    if (type == "batch")
        check_callbacks(check, def);
}

bool
is_graph(const JsonbContainer *def)
{
    JsonbValue steps;
    bool found = false;
    if (find_member(def, "steps", steps) && is_array(steps))
        each_element(steps.val.binary.data, [&found](const JsonbValue &step) { found |= is_in_graph(step); });
    return found;
}

Check
begin_check(const Jsonb *json, TimestampTz now)
{
    Check check = {now, AllocSetContextCreate(CurrentMemoryContext, "ojs job of a workflow", ALLOCSET_DEFAULT_SIZES),
                   {},  0,
                   {},  nullptr};
    initStringInfo(&check.path);
    appendStringInfoChar(&check.path, '$');
    check.out.queues = static_cast<int64 *>(palloc(sizeof(int64) * max_workflow_queues));
    if (!is_object(json))
        refuse(check, "", "Give a chain, a group or a batch.", "a workflow must be an object");
    if (VARSIZE(json) > max_workflow_bytes)
        raise(Code::payload_too_large,
              Details()
                  .add("field", "def")
                  .add("actual_bytes", static_cast<int64>(VARSIZE(json)))
                  .add("maximum_bytes", static_cast<int64>(max_workflow_bytes)),
              "Split the workflow.", "the definition of a workflow may have %d bytes", max_workflow_bytes);
    return check;
}

Definition
end_check(Check &check)
{
    MemoryContextDelete(check.each);
    check.out.jobs = check.jobs;
    return check.out;
}

} // namespace

namespace
{

Jsonb *
job_of_tenant(const JsonbContainer *job, std::string_view tenant)
{
    ObjectBuilder out, meta;
    JsonbValue given, options;
    bool in_options = find_member(job, "options", options) && is_object(options) &&
                      find_member(options.val.binary.data, "meta", given);
    bool has_meta = in_options || find_member(job, "meta", given);
    JsonbValue stated;
    if (has_meta && (!is_object(given) || find_member(given.val.binary.data, "tenant_id", stated)))
        return nullptr; /* has one already; or is refused, as it is */
    if (has_meta)
        each_member(given.val.binary.data,
                    [&meta](std::string_view key, const JsonbValue &value) { meta.add(key, value); });
    const Jsonb *with_tenant = meta.add("tenant_id", tenant).finish();
    each_member(job, [&](std::string_view key, const JsonbValue &value) {
        if (key != "meta" && (key != "options" || !in_options))
            out.add(key, value);
    });
    if (!in_options)
        return out.add("meta", with_tenant).finish();
    ObjectBuilder others;
    each_member(options.val.binary.data, [&others](std::string_view key, const JsonbValue &value) {
        if (key != "meta")
            others.add(key, value);
    });
    return out.add("options", others.add("meta", with_tenant).finish()).finish();
}

Jsonb *members_of_tenant(const JsonbContainer *def, std::string_view tenant);

JsonbValue
member_of_tenant(const JsonbValue &member, std::string_view tenant)
{
    if (!is_object(member))
        return member;
    const JsonbContainer *object = member.val.binary.data;
    Jsonb *changed = is_workflow(object) ? members_of_tenant(object, tenant) : job_of_tenant(object, tenant);
    return changed != nullptr ? json_of(changed) : member;
}

Jsonb *
members_of_tenant(const JsonbContainer *def, std::string_view tenant)
{
    ObjectBuilder out;
    check_stack_depth();
    each_member(def, [&](std::string_view key, const JsonbValue &value) {
        if ((key == "steps" || key == "jobs") && is_array(value)) {
            JsonbParseState *list = nullptr;
            pushJsonbValue(&list, WJB_BEGIN_ARRAY, nullptr);
            each_element(value.val.binary.data, [&](const JsonbValue &element) {
                JsonbValue member = member_of_tenant(element, tenant);
                pushJsonbValue(&list, WJB_ELEM, &member);
            });
            out.add(key, JsonbValueToJsonb(pushJsonbValue(&list, WJB_END_ARRAY, nullptr)));
        } else if (key == "callbacks" && is_object(value)) {
            ObjectBuilder callbacks;
            each_member(value.val.binary.data, [&](std::string_view name, const JsonbValue &job) {
                callbacks.add(name, member_of_tenant(job, tenant));
            });
            out.add(key, callbacks.finish());
        } else
            out.add(key, value);
    });
    return out.finish();
}

} // namespace

Jsonb *
definition_of_caller(Jsonb *json)
{
    std::string_view tenant = caller_tenant();
    return tenant.empty() || !is_object(json) ? json : members_of_tenant(root_of(json), tenant);
}

Definition
check_definition(const Jsonb *json, TimestampTz now)
{
    Check check = begin_check(json, now);
    JsonbValue id;

    if (is_graph(root_of(json)))
        raise_graph("$.steps");
    std::string_view type = type_of(root_of(json));
    if (std::find(std::begin(kinds), std::end(kinds), type) == std::end(kinds))
        refuse(check, "type", "Say chain, group or batch.", "the type of a workflow must be chain, group or batch");
    if (find_member(root_of(json), "id", id)) {
        check.out.id = id_value(id);
        check.out.has_id = true;
    }
    check_workflow(check, root_of(json), 1);
    return end_check(check);
}

Definition
check_extension(const Jsonb *json, std::string_view type, int depth, TimestampTz now)
{
    Check check = begin_check(json, now);
    const char *list = type == "chain" ? "steps" : "jobs";
    each_member(root_of(json), [&](std::string_view name, const JsonbValue &value) {
        bool same_type = name == "type" && value.type == jbvString && text_of(value) == type;
        if (!same_type && name != list)
            refuse(check, clipped(name), psprintf("Give the new members in \"%s\", and nothing else.", list),
                   psprintf("a %s gets more %s", pnstrdup(type.data(), type.size()), list));
    });
    check_members(check, root_of(json), list, type == "chain" ? max_workflow_steps : max_workflow_jobs, depth);
    return end_check(check);
}

} // namespace ojs
