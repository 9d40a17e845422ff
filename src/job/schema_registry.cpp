/*
 * schema_registry.cpp: see schema_registry.h.
 *
 * A session knows which types have schemas, and keeps the schemas that it has used. A change of the table
 * ojs_store.job_schema drops both.
 */
#include "ojs/job/schema_registry.h"

#include "ojs/job/json_schema.h"
#include "ojs/job/version.h"
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"
#include "ojs/pg/session_cache.h"
#include "ojs/pg/settings.h"
#include "ojs/store/spi.h"
#include "ojs/store/store.h"

namespace ojs
{

namespace
{

constexpr size_t max_name = 448; /* "type@version", or a URI */
constexpr int64 most_kept_bytes = 4 * 1024 * 1024;
constexpr int most_warnings = 20; /* of one statement */

/* A type that has schemas, and what its mode is; -1: as the setting says. */
struct SchemaType {
    char name[256];
    int mode;
};

/* A schema by its URI, or by type and version. Null: there is none of that name. */
struct KeptSchema {
    char name[max_name];
    const Jsonb *schema;
    const char *title; /* type@version */
    int mode;
};

MemoryContext context; /* of both */
HTAB *types;
HTAB *kept;
int64 n_types;
int64 kept_bytes;
SessionCache cache;

/* Of the statement that began then: how many jobs were warned of, and the first warnings. */
TimestampTz warned_at;
int n_warnings;
char warnings[most_warnings][256];

constinit Statement read_types = {R"sql(
    select s.type, max(array_position('{off,warn,strict}', m.mode)) - 1
    from ojs_store.job_schema s left join ojs_store.schema_mode m on m.type = s.type group by s.type
)sql",
                                  {},
                                  nullptr};

constinit Statement read_by_uri = {R"sql(
    select s.schema, s.type || '@' || s.version, array_position('{off,warn,strict}', m.mode) - 1
    from ojs_store.job_schema s left join ojs_store.schema_mode m on m.type = s.type where s.uri = $1
)sql",
                                   {TEXTOID},
                                   nullptr};

/* Without a version the latest. */
constinit Statement read_by_version = {R"sql(
    select s.schema, s.type || '@' || s.version, array_position('{off,warn,strict}', m.mode) - 1
    from ojs_store.job_schema s left join ojs_store.schema_mode m on m.type = s.type
    where s.type = $1 and ($2 is null or s.key = ojs_store.version_key($2))
    order by s.key desc limit 1
)sql",
                                       {TEXTOID, TEXTOID},
                                       nullptr};

int
mode_in(uint64 row, int column)
{
    bool null;
    Datum value = cell(row, column, &null);
    return null ? -1 : DatumGetInt32(value);
}

HTAB *
table_of(const char *name, size_t entry)
{
    HASHCTL control = {};
    control.keysize = entry == sizeof(SchemaType) ? sizeof SchemaType::name : sizeof KeptSchema::name;
    control.entrysize = entry;
    control.hcxt = context;
    return hash_create(name, 32, &control, HASH_ELEM | HASH_STRINGS | HASH_CONTEXT);
}

void
load()
{
    if (context == nullptr)
        context = AllocSetContextCreate(TopMemoryContext, "ojs schemas", ALLOCSET_SMALL_SIZES);
    MemoryContextReset(context);
    n_types = 0;
    kept_bytes = 0;
    with_spi([] {
        auto n = static_cast<int64>(execute_latest(read_types));
        if (n == 0)
            return;
        types = table_of("ojs types with schemas", sizeof(SchemaType));
        kept = table_of("ojs schemas", sizeof(KeptSchema));
        for (int64 row = 0; row < n; row++) {
            bool found;
            bool null;
            char name[sizeof SchemaType::name] = {};
            strlcpy(name, TextDatumGetCString(cell(row, 1, &null)), sizeof name);
            static_cast<SchemaType *>(hash_search(types, name, HASH_ENTER, &found))->mode = mode_in(row, 2);
        }
        n_types = n;
    });
}

bool
any_schemas()
{
    cache.refresh(store::catalog_generation(store::Rel::job_schema), load);
    return n_types > 0;
}

/* Reads a schema once. `name` says what it is kept under. */
const KeptSchema *
keep(const char *name, Statement &statement, std::initializer_list<SpiArg> args)
{
    bool found;
    auto *entry = static_cast<KeptSchema *>(hash_search(kept, name, HASH_FIND, &found));
    if (entry != nullptr)
        return entry;
    const Jsonb *schema = nullptr;
    const char *title = nullptr;
    int mode = -1;
    with_spi([&] {
        bool null;
        if (execute_latest(statement, args) == 0)
            return;
        MemoryContext old = MemoryContextSwitchTo(context);
        schema = DatumGetJsonbPCopy(cell(0, 1, &null));
        title = TextDatumGetCString(cell(0, 2, &null));
        MemoryContextSwitchTo(old);
        mode = mode_in(0, 3);
        kept_bytes += static_cast<int64>(VARSIZE(schema));
    });
    kept_bytes += static_cast<int64>(sizeof(KeptSchema));
    entry = static_cast<KeptSchema *>(hash_search(kept, name, HASH_ENTER, &found));
    entry->schema = schema;
    entry->title = title;
    entry->mode = mode;
    return entry;
}

const KeptSchema *
schema_by_uri(std::string_view uri)
{
    if (uri.empty() || uri.size() >= max_name)
        return nullptr;
    const char *name = pnstrdup(uri.data(), uri.size());
    const KeptSchema *found = keep(name, read_by_uri, {CStringGetTextDatum(name)});
    return found->schema != nullptr ? found : nullptr;
}

const KeptSchema *
schema_by_version(std::string_view type, std::string_view version)
{
    if (type.size() + version.size() + 2 > max_name || version.size() > max_version_length)
        return nullptr;
    Datum type_text = PointerGetDatum(cstring_to_text_with_len(type.data(), static_cast<int>(type.size())));
    const char *type_name = pnstrdup(type.data(), type.size());
    const KeptSchema *found;
    if (version.data() == nullptr)
        found = keep(psprintf("%s@", type_name), read_by_version, {type_text, nullptr});
    else {
        const char *text = pnstrdup(version.data(), version.size());
        found = keep(psprintf("%s@%s", type_name, text), read_by_version, {type_text, CStringGetTextDatum(text)});
    }
    return found->schema != nullptr ? found : nullptr;
}

/* What a $ref of a schema names. What is kept stays, whatever changes meanwhile: a validation has pointers into it. */
const Jsonb *
find_registered(std::string_view uri)
{
    const KeptSchema *found = n_types > 0 ? schema_by_uri(uri) : nullptr;
    return found != nullptr ? found->schema : nullptr;
}

bool
is_of_type(const KeptSchema &schema, std::string_view type)
{
    std::string_view title = schema.title;
    return title.size() > type.size() && title.starts_with(type) && title[type.size()] == '@';
}

[[noreturn]] void
raise_no_version(const Envelope &envelope, std::string_view version)
{
    const char *type = clipped(envelope.type);
    raise(Code::schema_validation_failed, Details().add("field", "version").add("job_type", type),
          "Give a version that ojs.schemas lists, or have one registered with ojs.create_schema.",
          "version %s of %s has no schema", clipped(version), type);
}

/*
 * The schema that the job names by its URI, or that of its type and version, or the latest of its type. A type that has
 * schemas is not let off by naming the schema of another, nor, if it is strict, by a version that has none.
 */
const KeptSchema *
schema_of(const Envelope &envelope)
{
    JsonbValue uri;
    if (kept_bytes > most_kept_bytes) {
        cache.valid = false;
        if (!any_schemas())
            return nullptr;
    }
    char name[sizeof SchemaType::name] = {};
    memcpy(name, envelope.type.data(), std::min(envelope.type.size(), sizeof name - 1));
    auto *type = static_cast<SchemaType *>(hash_search(types, name, HASH_FIND, nullptr));
    if (envelope.options != nullptr && find_member(root_of(envelope.options), "schema", uri) && uri.type == jbvString) {
        const KeptSchema *found = schema_by_uri(text_of(uri));
        if (found != nullptr && (type == nullptr || is_of_type(*found, envelope.type)))
            return found;
    }
    if (type == nullptr)
        return nullptr;
    std::string_view version = version_in(envelope.options);
    const KeptSchema *found = schema_by_version(envelope.type, version);
    if (found == nullptr && (type->mode >= 0 ? type->mode : settings.schema_validation) == schema_strict)
        raise_no_version(envelope, version);
    return found;
}

/* A schema of one object is also that of args that hold one object, as HTTP sends them. */
JsonbValue
target_of(const Jsonb *schema, const Jsonb *args)
{
    JsonbValue type;
    JsonbValue value = root_value(args);
    if (is_array(value) && JB_ROOT_COUNT(args) == 1 && is_object(schema) &&
        find_any_member(root_of(schema), "type", type) && type.type == jbvString && text_of(type) == "object") {
        JsonbValue *only = getIthJsonbValueFromContainer(value.val.binary.data, 0);
        if (is_object(*only))
            return *only;
    }
    return value;
}

void
keep_warning(int item, const char *text)
{
    if (warned_at != GetCurrentStatementStartTimestamp()) {
        warned_at = GetCurrentStatementStartTimestamp();
        n_warnings = 0;
    }
    if (n_warnings < most_warnings) {
        char *out = warnings[n_warnings];
        size_t at = item >= 0 ? static_cast<size_t>(snprintf(out, sizeof warnings[0], "jobs[%d]: ", item)) : 0;
        strlcpy(out + at, text, sizeof warnings[0] - at);
        out[pg_mbcliplen(out, static_cast<int>(strlen(out)), sizeof warnings[0] - 1)] = '\0';
    }
    n_warnings++;
}

Jsonb *
list_of(const char *prefix, const char *const *texts, int n)
{
    JsonbParseState *list = nullptr;
    pushJsonbValue(&list, WJB_BEGIN_ARRAY, nullptr);
    for (int i = 0; i < n; i++) {
        JsonbValue value = json_text(psprintf("%s%s", prefix, texts[i]));
        pushJsonbValue(&list, WJB_ELEM, &value);
    }
    return JsonbValueToJsonb(pushJsonbValue(&list, WJB_END_ARRAY, nullptr));
}

} // namespace

void
check_schema_of(Envelope &envelope, const Jsonb *args)
{
    if (!any_schemas())
        return;
    const KeptSchema *schema = schema_of(envelope);
    if (schema == nullptr)
        return;
    int mode = schema->mode >= 0 ? schema->mode : settings.schema_validation;
    if (mode == schema_off)
        return;
    SchemaErrors errors = validate_json(schema->schema, target_of(schema->schema, args), "args", find_registered);
    if (errors.n == 0)
        return;
    Details details = Details().add("field", "args").add("schema", schema->title);
    details.add_unlogged_list("validation_errors", errors.text, errors.n);
    if (mode == schema_strict)
        raise(Code::schema_validation_failed, details, "Mend the arguments; ojs.schemas has the schema.",
              "args do not match the schema of %s", schema->title);
    int before = warned_at == GetCurrentStatementStartTimestamp() ? n_warnings : 0;
    for (int i = 0; i < errors.n; i++)
        keep_warning(envelope.item, errors.text[i]);
    envelope.schema_warnings = list_of("Schema validation warning: ", errors.text, errors.n);
    if (before < most_warnings)
        warn(Code::schema_validation_failed, details, "The job is pushed all the same; ojs.schemas has the schema.",
             "args do not match the schema of %s", schema->title);
}

Jsonb *
with_schema_warnings(Jsonb *reply, const Envelope &envelope)
{
    if (envelope.schema_warnings == nullptr)
        return reply;
    ObjectBuilder out;
    each_member(root_of(reply), [&out](std::string_view key, const JsonbValue &value) { out.add(key, value); });
    return out.add("warnings", envelope.schema_warnings).finish();
}

} // namespace ojs

using namespace ojs;

/* ojs_http.schema_warnings() returns jsonb: what the pushes of this statement were warned of; null if of nothing */
OJS_FUNCTION(ojs_schema_warnings)
{
    const char *texts[most_warnings];
    if (warned_at != GetCurrentStatementStartTimestamp() || n_warnings == 0)
        PG_RETURN_NULL();
    int n = std::min(n_warnings, most_warnings);
    for (int i = 0; i < n; i++)
        texts[i] = warnings[i];
    PG_RETURN_JSONB_P(list_of("Schema validation warning: ", texts, n));
}

/* ojs_store.check_schema(schema jsonb) returns void: raises unless it is one that can be applied */
OJS_FUNCTION(ojs_check_schema)
{
    (void)any_schemas();
    check_json_schema(PG_GETARG_JSONB_P(0), find_registered);
    PG_RETURN_VOID();
}

/* ojs_store.schema_errors(schema jsonb, value jsonb) returns jsonb: an array of sentences; empty if it is valid */
OJS_FUNCTION(ojs_schema_errors)
{
    (void)any_schemas();
    SchemaErrors errors =
        validate_json(PG_GETARG_JSONB_P(0), root_value(PG_GETARG_JSONB_P(1)), "value", find_registered);
    PG_RETURN_JSONB_P(list_of("", errors.text, errors.n));
}
