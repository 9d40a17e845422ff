/*
 * rows.cpp: structs to tuples and back, column by column.
 */
#include "ojs/store/rows.h"

#include "ojs/pg/row.h"

namespace ojs
{

namespace
{

/* The types of the columns, as sql/tables.sql has them. */
constexpr Oid job_types[] = {UUIDOID,  INT8OID,  INT8OID,        TIMESTAMPTZOID, INT4OID, INT4OID,  INT2OID,  TEXTOID,
                             JSONBOID, JSONBOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, JSONBOID, JSONBOID, JSONBOID};
constexpr Oid job_history_types[] = {UUIDOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT2OID, INT4OID,
                                     INT4OID, TIMESTAMPTZOID, TEXTOID,        JSONBOID};
constexpr Oid finished_types[] = {UUIDOID, TIMESTAMPTZOID, INT8OID, INT4OID,  INT4OID, TIMESTAMPTZOID,
                                  INT2OID, INT2OID,        TEXTOID, JSONBOID, JSONBOID};
constexpr Oid ready_types[] = {UUIDOID, INT8OID, INT8OID, TIDOID, INT2OID, INT4OID, INT4OID, INT4OID};
constexpr Oid lease_types[] = {UUIDOID,        TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, INT8OID, TIMESTAMPTZOID,
                               TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID,        TIDOID,  INT2OID, INT4OID,
                               INT4OID,        INT4OID,        INT4OID,        TEXTOID};
constexpr Oid delayed_types[] = {UUIDOID, INT8OID, TIMESTAMPTZOID, TIDOID, INT2OID, INT2OID, INT4OID, INT4OID, INT4OID};
constexpr Oid hot_set_state_types[] = {TIMESTAMPTZOID, INTERVALOID, INT8OID, TEXTOID};
constexpr Oid queue_types[] = {INT8OID, TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, JSONBOID};
constexpr Oid worker_types[] = {TEXTOID,        TEXTOID, TEXTOID,        JSONBOID, TIMESTAMPTZOID,
                                TIMESTAMPTZOID, BOOLOID, TIMESTAMPTZOID, BOOLOID,  TEXTOID};
constexpr Oid unique_key_types[] = {BYTEAOID, UUIDOID, UUIDARRAYOID, BOOLOID};
constexpr Oid rate_limit_types[] = {TEXTOID, JSONBOID, TIMESTAMPTZOID, TIMESTAMPTZOID};
constexpr Oid limit_use_types[] = {INT8OID,        INT2OID, TIMESTAMPTZOID, INT8OID,
                                   TIMESTAMPTZOID, UUIDOID, INT8OID,        TEXTOID};
constexpr Oid lease_log_types[] = {INT8OID,        UUIDOID, INT8OID, INT8OID, TIMESTAMPTZOID,
                                   TIMESTAMPTZOID, INT8OID, INT2OID, INT4OID, TEXTOID};
constexpr Oid hook_types[] = {TEXTOID, TEXTOID, INT4OID, TEXTOID, TEXTOID, TEXTOID, TIMESTAMPTZOID, TEXTOID};
constexpr Oid checkpoint_types[] = {UUIDOID, INT8OID, TIMESTAMPTZOID, JSONBOID};
constexpr Oid progress_types[] = {UUIDOID, TIMESTAMPTZOID, INT4OID, TIMESTAMPTZOID, NUMERICOID, TEXTOID, JSONBOID};
constexpr Oid dead_letter_types[] = {UUIDOID, INT8OID, TIMESTAMPTZOID, TEXTOID};
constexpr Oid name_key_types[] = {UUIDOID, TIMESTAMPTZOID};
constexpr Oid deduplication_types[] = {INT8OID, TEXTOID, UUIDOID, TIMESTAMPTZOID};
constexpr Oid idempotency_types[] = {TEXTOID, TEXTOID, BYTEAOID, JSONBOID, TIMESTAMPTZOID};
constexpr Oid listener_flag_types[] = {INT8OID};
constexpr Oid workflow_open_types[] = {UUIDOID, UUIDOID, INT4OID, BOOLOID};
constexpr Oid workflow_end_types[] = {UUIDOID, INT4OID, UUIDOID,        TIMESTAMPTZOID, INT4OID,
                                      BOOLOID, TEXTOID, TIMESTAMPTZOID, JSONBOID,       JSONBOID};
constexpr Oid workflow_due_types[] = {UUIDOID, TIMESTAMPTZOID, INT4OID, TEXTOID};
constexpr Oid job_schema_types[] = {TEXTOID, BYTEAOID, TEXTOID, TEXTOID, JSONBOID, TIMESTAMPTZOID};
constexpr Oid ordering_line_types[] = {INT8OID, INT8OID, INT8OID, UUIDOID};
constexpr Oid ordering_due_types[] = {INT8OID, INT8OID};
constexpr Oid tenant_role_types[] = {TEXTOID, TEXTOID};
constexpr Oid tenant_types[] = {TEXTOID, JSONBOID, TIMESTAMPTZOID};
constexpr Oid maintenance_types[] = {TIMESTAMPTZOID, TEXTOID, TIMESTAMPTZOID, TEXTOID};
constexpr Oid job_parent_types[] = {UUIDOID, UUIDOID};
constexpr Oid pool_types[] = {TEXTOID, TEXTARRAYOID, INT4ARRAYOID, INT4OID, TEXTOID, TIMESTAMPTZOID};

bool
is_null(const auto &value)
{
    if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(value)>>)
        return value == nullptr;
    else if constexpr (requires { value.has_value(); })
        return !value.has_value();
    else
        return false;
}

/* How many bytes the value takes, at most, with what may come before it to align it. */
template <typename Value>
Size
room_for(const Value &value)
{
    if constexpr (std::is_pointer_v<Value>)
        return value == nullptr ? 0 : RowWriter::room_for_varlena(value);
    else
        return sizeof(Value) + alignof(Value);
}

template <typename Value>
void
put(RowWriter &out, const Value &value)
{
    if (is_null(value))
        out.none();
    else if constexpr (std::is_pointer_v<Value>)
        out.varlena(value);
    else if constexpr (requires { value.has_value(); })
        out.fixed(*value);
    else
        out.fixed(value);
}

/*
 * How many columns a row must have. Columns that it does not have read as null, as in rows that are older than their
 * column. If only the last ones are null, the row can do without them, and so without a bitmap of nulls: 8 bytes less
 * to log and to keep.
 */
int
columns_given(const bool *nulls, int n, TupleDesc columns)
{
    int given = n;
    while (given > 0 && nulls[given - 1] && !TupleDescAttr(columns, given - 1)->atthasmissing)
        given--;
    return std::find(nulls, nulls + given, true) == nulls + given ? given : n;
}

/* Where the values of a row that may be large or out of line are to be: each in memory of its own, so that they stay
 * when the slot goes on, or in the slot where it has them. */
enum class Storage { own, slot };

/* Reads one column after the other. jsonb is given back plain, whether or not it was compressed or out of line. */
template <Storage storage> struct Reader {
    TupleTableSlot *slot;
    int at = 0;

    explicit Reader(TupleTableSlot *s) : slot(s) { slot_getallattrs(slot); }

    Datum next() { return slot->tts_values[at++]; }
    bool null() const { return slot->tts_isnull[at]; }
    void take(pg_uuid_t &v) { v = *DatumGetUUIDP(next()); }
    void take(ItemPointerData &v) { v = *reinterpret_cast<ItemPointer>(DatumGetPointer(next())); }
    void take(int64 &v) { v = DatumGetInt64(next()); }
    void take(int32 &v) { v = DatumGetInt32(next()); }
    void take(int16 &v) { v = DatumGetInt16(next()); }
    void take(std::optional<int64> &v)
    {
        bool is_null = null();
        Datum value = next();
        std::construct_at(&v, is_null ? std::nullopt
                                      : std::optional<int64>(DatumGetInt64(value))); /* the row may be raw memory */
    }
    /* `plain`: the value as it is used, which may be a copy already. */
    template <typename Varlena> Varlena *placed(Datum value, Varlena *plain)
    {
        if (storage == Storage::slot || static_cast<void *>(plain) != DatumGetPointer(value))
            return plain;
        Size size = VARSIZE_ANY(plain);
        return static_cast<Varlena *>(memcpy(palloc(size), plain, size));
    }
    void take(text *&v)
    {
        bool is_null = null();
        Datum value = next();
        v = is_null ? nullptr : placed(value, DatumGetTextPP(value));
    }
    void take(Jsonb *&v)
    {
        bool is_null = null();
        Datum value = next();
        v = is_null ? nullptr : placed(value, DatumGetJsonbP(value));
    }
    void take(Numeric &v)
    {
        bool is_null = null();
        Datum value = next();
        v = is_null ? nullptr : placed(value, DatumGetNumeric(value));
    }
    template <typename E>
    requires std::is_enum_v<E>
    void take(E &v) { v = static_cast<E>(DatumGetInt16(next())); }
};

} // namespace

const Shape shapes[static_cast<int>(store::Rel::count)] = {{lengthof(job_types), job_types},
                                                           {lengthof(job_history_types), job_history_types},
                                                           {lengthof(finished_types), finished_types},
                                                           {lengthof(ready_types), ready_types},
                                                           {lengthof(lease_types), lease_types},
                                                           {lengthof(delayed_types), delayed_types},
                                                           {lengthof(hot_set_state_types), hot_set_state_types},
                                                           {lengthof(queue_types), queue_types},
                                                           {lengthof(worker_types), worker_types},
                                                           {lengthof(unique_key_types), unique_key_types},
                                                           {lengthof(rate_limit_types), rate_limit_types},
                                                           {lengthof(limit_use_types), limit_use_types},
                                                           {lengthof(lease_log_types), lease_log_types},
                                                           {lengthof(hook_types), hook_types},
                                                           {lengthof(checkpoint_types), checkpoint_types},
                                                           {lengthof(progress_types), progress_types},
                                                           {lengthof(dead_letter_types), dead_letter_types},
                                                           {lengthof(maintenance_types), maintenance_types},
                                                           {lengthof(pool_types), pool_types},
                                                           {lengthof(name_key_types), name_key_types},
                                                           {lengthof(deduplication_types), deduplication_types},
                                                           {lengthof(idempotency_types), idempotency_types},
                                                           {lengthof(listener_flag_types), listener_flag_types},
                                                           {lengthof(workflow_open_types), workflow_open_types},
                                                           {lengthof(workflow_end_types), workflow_end_types},
                                                           {lengthof(workflow_due_types), workflow_due_types},
                                                           {lengthof(job_schema_types), job_schema_types},
                                                           {lengthof(ordering_line_types), ordering_line_types},
                                                           {lengthof(ordering_due_types), ordering_due_types},
                                                           {lengthof(tenant_role_types), tenant_role_types},
                                                           {lengthof(tenant_types), tenant_types},
                                                           {lengthof(job_parent_types), job_parent_types}};

template <typename Row>
HeapTuple
form(Relation rel, const Row &row)
{
    return Row::columns(row, [rel](const auto &...column) {
        constexpr int n = sizeof...(column);
        Assert(RelationGetNumberOfAttributes(rel) == n);
        const bool nulls[] = {is_null(column)...};
        int given = columns_given(nulls, n, RelationGetDescr(rel));
        bool any_null = std::find(nulls, nulls + given, true) != nulls + given;
        RowWriter out(given, any_null, (room_for(column) + ...));
        int number = 0;
        ((number++ < given ? put(out, column) : void()), ...);
        return out.finish();
    });
}

template <typename Row>
void
read(TupleTableSlot *slot, Row &row)
{
    Row::columns(row, [slot](auto &...column) {
        Reader<Storage::own> r(slot);
        (r.take(column), ...);
    });
}

template <typename Row>
void
read_in_place(TupleTableSlot *slot, Row &row)
{
    Row::columns(row, [slot](auto &...column) {
        Reader<Storage::slot> r(slot);
        (r.take(column), ...);
    });
}

template HeapTuple form(Relation, const JobRow &);
template HeapTuple form(Relation, const HistoryRow &);
template HeapTuple form(Relation, const FinishedRow &);
template HeapTuple form(Relation, const ReadyRow &);
template HeapTuple form(Relation, const LeaseRow &);
template HeapTuple form(Relation, const DelayedRow &);
template HeapTuple form(Relation, const CheckpointRow &);
template HeapTuple form(Relation, const LimitUseRow &);
template HeapTuple form(Relation, const LineRow &);
template HeapTuple form(Relation, const DueLineRow &);
template HeapTuple form(Relation, const ParentRow &);
template void read(TupleTableSlot *, JobRow &);
template void read(TupleTableSlot *, HistoryRow &);
template void read(TupleTableSlot *, FinishedRow &);
template void read(TupleTableSlot *, ReadyRow &);
template void read(TupleTableSlot *, LeaseRow &);
template void read(TupleTableSlot *, DelayedRow &);
template void read(TupleTableSlot *, CheckpointRow &);
template void read(TupleTableSlot *, ProgressRow &);
template void read(TupleTableSlot *, LimitUseRow &);
template void read(TupleTableSlot *, LineRow &);
template void read(TupleTableSlot *, DueLineRow &);
template void read_in_place(TupleTableSlot *, JobRow &);
template void read_in_place(TupleTableSlot *, LeaseRow &);
template void read_in_place(TupleTableSlot *, LimitUseRow &);

template <>
void
read(TupleTableSlot *slot, JobBrief &row)
{
    constexpr int created_at = number_of<JobRow>(&JobRow::created_at);
    constexpr int flags = number_of<JobRow>(&JobRow::flags);
    constexpr int unique_policy = number_of<JobRow>(&JobRow::unique_policy);
    slot_getsomeattrs(slot, unique_policy + 1);
    row.created_at = DatumGetTimestampTz(slot->tts_values[created_at]);
    row.flags = DatumGetInt32(slot->tts_values[flags]);
    row.unique_policy = slot->tts_isnull[unique_policy] ? nullptr : DatumGetJsonbPCopy(slot->tts_values[unique_policy]);
}

template <>
void
read(TupleTableSlot *slot, FinishedBrief &row)
{
    auto value = [slot](int column) { return slot->tts_values[column]; };
    slot_getsomeattrs(slot, number_of<FinishedRow>(&FinishedRow::flags) + 1);
    row.job_id = *DatumGetUUIDP(value(number_of<FinishedRow>(&FinishedRow::job_id)));
    row.finished_at = DatumGetTimestampTz(value(number_of<FinishedRow>(&FinishedRow::finished_at)));
    row.queue = DatumGetInt64(value(number_of<FinishedRow>(&FinishedRow::queue)));
    row.state = static_cast<State>(DatumGetInt16(value(number_of<FinishedRow>(&FinishedRow::state))));
    row.flags = DatumGetInt16(value(number_of<FinishedRow>(&FinishedRow::flags)));
}

static constexpr int64 fixed_size = 100; /* of a job's row, more or less: a job without arguments has a size, too */

int64
size_of(std::string_view type, std::initializer_list<const Jsonb *> values)
{
    int64 size = fixed_size + static_cast<int64>(type.size());
    for (const Jsonb *value : values)
        if (value != nullptr)
            size += static_cast<int64>(VARSIZE_ANY_EXHDR(value));
    return size;
}

int64
size_of_stored(TupleTableSlot *slot)
{
    int64 size = fixed_size;
    TupleDesc columns = slot->tts_tupleDescriptor;
    slot_getallattrs(slot);
    for (int i = 0; i < columns->natts; i++)
        if (TupleDescAttr(columns, i)->attlen == -1 && !slot->tts_isnull[i])
            size += static_cast<int64>(toast_raw_datum_size(slot->tts_values[i])) - VARHDRSZ;
    return size;
}

} // namespace ojs
