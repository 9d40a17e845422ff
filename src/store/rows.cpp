/*
 * rows.cpp: structs to tuples and back, column by column.
 */
#include "ojs/store/rows.h"

namespace ojs
{

namespace
{

/* The types of the columns, as sql/tables.sql has them. */
constexpr Oid job_types[] = {UUIDOID, INT8OID, INT8OID, TIMESTAMPTZOID, INT4OID, INT4OID, INT2OID, TEXTOID, JSONBOID,
                             JSONBOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, JSONBOID, JSONBOID, JSONBOID};
constexpr Oid event_types[] = {UUIDOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT2OID, INT4OID, INT4OID, TIMESTAMPTZOID,
                               TEXTOID, JSONBOID};
constexpr Oid done_types[] = {UUIDOID, TIMESTAMPTZOID, INT8OID, INT4OID, INT4OID, TIMESTAMPTZOID, INT2OID, INT2OID,
                              TEXTOID, JSONBOID, JSONBOID};
constexpr Oid ready_types[] = {UUIDOID, INT8OID, INT8OID, TIDOID, INT2OID, INT4OID, INT4OID, INT4OID};
constexpr Oid lease_types[] = {UUIDOID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, INT8OID, TIMESTAMPTZOID,
                               TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, TIDOID, INT2OID, INT4OID, INT4OID, INT4OID,
                               INT4OID, TEXTOID};
constexpr Oid later_types[] = {UUIDOID, INT8OID, TIMESTAMPTZOID, TIDOID, INT2OID, INT2OID, INT4OID, INT4OID, INT4OID};
constexpr Oid feed_types[] = {TIMESTAMPTZOID, INTERVALOID, INT8OID, TEXTOID};
constexpr Oid queue_types[] = {INT8OID, TEXTOID, TEXTOID, TIMESTAMPTZOID, TIMESTAMPTZOID, JSONBOID};
constexpr Oid worker_types[] = {TEXTOID, TEXTOID, TEXTOID, JSONBOID, TIMESTAMPTZOID, TIMESTAMPTZOID, BOOLOID,
                                TIMESTAMPTZOID, BOOLOID};
constexpr Oid uniq_types[] = {BYTEAOID, UUIDOID, UUIDARRAYOID, BOOLOID};
constexpr Oid rate_limit_types[] = {TEXTOID, JSONBOID, TIMESTAMPTZOID, TIMESTAMPTZOID};
constexpr Oid limit_use_types[] = {INT8OID, INT2OID, TIMESTAMPTZOID, INT8OID, TIMESTAMPTZOID, UUIDOID, INT8OID,
                                   TEXTOID};
constexpr Oid lease_log_types[] = {INT8OID, UUIDOID, INT8OID, INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID,
                                   INT2OID, INT4OID, TEXTOID};
constexpr Oid hook_types[] = {TEXTOID, TEXTOID, INT4OID, TEXTOID, TEXTOID, TEXTOID, TIMESTAMPTZOID, TEXTOID};
constexpr Oid checkpoint_types[] = {UUIDOID, INT8OID, TIMESTAMPTZOID, JSONBOID};
constexpr Oid progress_types[] = {UUIDOID, TIMESTAMPTZOID, INT4OID, TIMESTAMPTZOID, NUMERICOID, TEXTOID, JSONBOID};
constexpr Oid dead_letter_types[] = {UUIDOID, INT8OID, TIMESTAMPTZOID};
constexpr Oid name_key_types[] = {UUIDOID, TIMESTAMPTZOID};
constexpr Oid deduplication_types[] = {INT8OID, TEXTOID, UUIDOID, TIMESTAMPTZOID};
constexpr Oid idempotency_types[] = {TEXTOID, TEXTOID, BYTEAOID, JSONBOID, TIMESTAMPTZOID};
constexpr Oid maintenance_types[] = {TIMESTAMPTZOID, TEXTOID, TIMESTAMPTZOID, TEXTOID};

/* Fills values and nulls one column after the other. */
template <int n> struct Columns {
    Datum values[n];
    bool nulls[n];
    int at = 0;

    void
    put(Datum value)
    {
        values[at] = value;
        nulls[at++] = false;
    }
    void
    none()
    {
        values[at] = 0;
        nulls[at++] = true;
    }
    void put(const pg_uuid_t &id) { put(UUIDPGetDatum(&id)); }
    void put(const ItemPointerData &tid) { put(PointerGetDatum(&tid)); }
    void put(int64 v) { put(Int64GetDatum(v)); }
    void put(int32 v) { put(Int32GetDatum(v)); }
    void put(int16 v) { put(Int16GetDatum(v)); }
    void
    put(const std::optional<int64> &v)
    {
        if (v)
            put(*v);
        else
            none();
    }
    void
    put(const void *varlena)
    {
        if (varlena != nullptr)
            put(PointerGetDatum(varlena));
        else
            none();
    }
    HeapTuple
    form(Relation rel)
    {
        Assert(at == n && RelationGetNumberOfAttributes(rel) == n);
        HeapTuple tuple = heap_form_tuple(RelationGetDescr(rel), values, nulls);
        leave_out_nulls(tuple, RelationGetDescr(rel));
        return tuple;
    }

private:
    /*
     * Columns that a row does not have read as null, as in rows that are older than their column. If only the last ones are
     * null, the row can do without them, and so without a bitmap of nulls: 8 bytes less to log and to keep.
     */
    void
    leave_out_nulls(HeapTuple tuple, TupleDesc columns)
    {
        int given = n;
        while (given > 0 && nulls[given - 1] && !TupleDescAttr(columns, given - 1)->atthasmissing)
            given--;
        if (given == n || std::find(nulls, nulls + given, true) != nulls + given)
            return;
        HeapTupleHeader header = tuple->t_data;
        auto *bytes = reinterpret_cast<char *>(header);
        uint8 start = MAXALIGN(SizeofHeapTupleHeader);
        memmove(bytes + start, bytes + header->t_hoff, tuple->t_len - header->t_hoff);
        tuple->t_len -= header->t_hoff - start;
        header->t_hoff = start;
        header->t_infomask &= static_cast<uint16>(~HEAP_HASNULL);
        HeapTupleHeaderSetNatts(header, given);
    }
};

/* Reads one column after the other. Varlena values may be compressed or out of line: jsonb is given back plain. */
struct Reader {
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
    void
    take(std::optional<int64> &v)
    {
        bool is_null = null();
        Datum value = next();
        std::construct_at(&v, is_null ? std::nullopt : std::optional<int64>(DatumGetInt64(value))); /* the row may be raw memory */
    }
    void
    take(text *&v)
    {
        if (null()) {
            at++;
            v = nullptr;
        } else
            v = DatumGetTextPP(next());
    }
    void
    take(Jsonb *&v)
    {
        if (null()) {
            at++;
            v = nullptr;
        } else
            v = DatumGetJsonbP(next());
    }
    void
    take(Numeric &v)
    {
        if (null()) {
            at++;
            v = nullptr;
        } else
            v = DatumGetNumeric(next());
    }
    template <typename E>
        requires std::is_enum_v<E>
    void
    take(E &v)
    {
        v = static_cast<E>(DatumGetInt16(next()));
    }
};

} // namespace

const Shape shapes[static_cast<int>(store::Rel::count)] = {
    {lengthof(job_types), job_types},
    {lengthof(event_types), event_types},
    {lengthof(done_types), done_types},
    {lengthof(ready_types), ready_types},
    {lengthof(lease_types), lease_types},
    {lengthof(later_types), later_types},
    {lengthof(feed_types), feed_types},
    {lengthof(queue_types), queue_types},
    {lengthof(worker_types), worker_types},
    {lengthof(uniq_types), uniq_types},
    {lengthof(rate_limit_types), rate_limit_types},
    {lengthof(limit_use_types), limit_use_types},
    {lengthof(lease_log_types), lease_log_types},
    {lengthof(hook_types), hook_types},
    {lengthof(checkpoint_types), checkpoint_types},
    {lengthof(progress_types), progress_types},
    {lengthof(dead_letter_types), dead_letter_types},
    {lengthof(maintenance_types), maintenance_types},
    {lengthof(name_key_types), name_key_types},
    {lengthof(deduplication_types), deduplication_types},
    {lengthof(idempotency_types), idempotency_types}};

HeapTuple
form(Relation rel, const JobRow &row)
{
    Columns<16> c;
    c.put(row.id);
    c.put(row.seq);
    c.put(row.queue);
    c.put(row.created_at);
    c.put(row.flags);
    c.put(row.max_attempts);
    c.put(row.priority);
    c.put(static_cast<const void *>(row.type));
    c.put(static_cast<const void *>(row.args));
    c.put(static_cast<const void *>(row.meta));
    c.put(row.scheduled_at);
    c.put(row.expires_at);
    c.put(row.timeout_ms);
    c.put(static_cast<const void *>(row.retry));
    c.put(static_cast<const void *>(row.uniq));
    c.put(static_cast<const void *>(row.options));
    return c.form(rel);
}

void
read(TupleTableSlot *slot, JobRow &row)
{
    Reader r(slot);
    r.take(row.id);
    r.take(row.seq);
    r.take(row.queue);
    r.take(row.created_at);
    r.take(row.flags);
    r.take(row.max_attempts);
    r.take(row.priority);
    r.take(row.type);
    r.take(row.args);
    r.take(row.meta);
    r.take(row.scheduled_at);
    r.take(row.expires_at);
    r.take(row.timeout_ms);
    r.take(row.retry);
    r.take(row.uniq);
    r.take(row.options);
}

HeapTuple
form(Relation rel, const EventRow &row)
{
    Columns<9> c;
    c.put(row.job_id);
    c.put(row.at);
    c.put(row.due_at);
    c.put(static_cast<int16>(row.kind));
    c.put(row.attempt);
    c.put(row.deliveries);
    c.put(row.started_at);
    c.put(static_cast<const void *>(row.worker));
    c.put(static_cast<const void *>(row.data));
    return c.form(rel);
}

void
read(TupleTableSlot *slot, EventRow &row)
{
    Reader r(slot);
    r.take(row.job_id);
    r.take(row.at);
    r.take(row.due_at);
    r.take(row.kind);
    r.take(row.attempt);
    r.take(row.deliveries);
    r.take(row.started_at);
    r.take(row.worker);
    r.take(row.data);
}

HeapTuple
form(Relation rel, const DoneRow &row)
{
    Columns<11> c;
    c.put(row.job_id);
    c.put(row.finished_at);
    c.put(row.queue);
    c.put(row.attempt);
    c.put(row.deliveries);
    c.put(row.started_at);
    c.put(static_cast<int16>(row.state));
    c.put(row.flags);
    c.put(static_cast<const void *>(row.worker));
    c.put(static_cast<const void *>(row.result));
    c.put(static_cast<const void *>(row.error));
    return c.form(rel);
}

void
read(TupleTableSlot *slot, DoneRow &row)
{
    Reader r(slot);
    r.take(row.job_id);
    r.take(row.finished_at);
    r.take(row.queue);
    r.take(row.attempt);
    r.take(row.deliveries);
    r.take(row.started_at);
    r.take(row.state);
    r.take(row.flags);
    r.take(row.worker);
    r.take(row.result);
    r.take(row.error);
}

HeapTuple
form(Relation rel, const ReadyRow &row)
{
    Columns<8> c;
    c.put(row.job_id);
    c.put(row.queue);
    c.put(row.place);
    c.put(row.job_tid);
    c.put(row.npriority);
    c.put(row.flags);
    c.put(row.attempt);
    c.put(row.deliveries);
    return c.form(rel);
}

void
read(TupleTableSlot *slot, ReadyRow &row)
{
    Reader r(slot);
    r.take(row.job_id);
    r.take(row.queue);
    r.take(row.place);
    r.take(row.job_tid);
    r.take(row.npriority);
    r.take(row.flags);
    r.take(row.attempt);
    r.take(row.deliveries);
}

HeapTuple
form(Relation rel, const LeaseRow &row)
{
    Columns<16> c;
    c.put(row.job_id);
    c.put(row.reap_at);
    c.put(row.deadline);
    c.put(row.token);
    c.put(row.queue);
    c.put(row.claimed_at);
    c.put(row.stop_at);
    c.put(row.beat_at);
    c.put(row.lease_ms);
    c.put(row.job_tid);
    c.put(row.npriority);
    c.put(row.flags);
    c.put(row.attempt);
    c.put(row.deliveries);
    c.put(row.session);
    c.put(static_cast<const void *>(row.worker));
    return c.form(rel);
}

void
read(TupleTableSlot *slot, LeaseRow &row)
{
    Reader r(slot);
    r.take(row.job_id);
    r.take(row.reap_at);
    r.take(row.deadline);
    r.take(row.token);
    r.take(row.queue);
    r.take(row.claimed_at);
    r.take(row.stop_at);
    r.take(row.beat_at);
    r.take(row.lease_ms);
    r.take(row.job_tid);
    r.take(row.npriority);
    r.take(row.flags);
    r.take(row.attempt);
    r.take(row.deliveries);
    r.take(row.session);
    r.take(row.worker);
}

HeapTuple
form(Relation rel, const LaterRow &row)
{
    Columns<9> c;
    c.put(row.job_id);
    c.put(row.queue);
    c.put(row.due_at);
    c.put(row.job_tid);
    c.put(row.npriority);
    c.put(static_cast<int16>(row.kind));
    c.put(row.flags);
    c.put(row.attempt);
    c.put(row.deliveries);
    return c.form(rel);
}

void
read(TupleTableSlot *slot, LaterRow &row)
{
    Reader r(slot);
    r.take(row.job_id);
    r.take(row.queue);
    r.take(row.due_at);
    r.take(row.job_tid);
    r.take(row.npriority);
    r.take(row.kind);
    r.take(row.flags);
    r.take(row.attempt);
    r.take(row.deliveries);
}

HeapTuple
form(Relation rel, const LimitUseRow &row)
{
    Columns<8> c;
    c.put(row.key);
    c.put(static_cast<int16>(row.kind));
    c.put(row.at);
    c.put(row.number);
    c.put(row.until);
    c.put(row.job_id);
    c.put(row.token);
    c.put(row.name);
    return c.form(rel);
}

HeapTuple
form(Relation rel, const CheckpointRow &row)
{
    Columns<4> c;
    c.put(row.job_id);
    c.put(row.sequence);
    c.put(row.created_at);
    c.put(static_cast<const void *>(row.state));
    return c.form(rel);
}

void
read(TupleTableSlot *slot, CheckpointRow &row)
{
    Reader r(slot);
    r.take(row.job_id);
    r.take(row.sequence);
    r.take(row.created_at);
    r.take(row.state);
}

void
read(TupleTableSlot *slot, ProgressRow &row)
{
    Reader r(slot);
    r.take(row.job_id);
    r.take(row.started_at);
    r.take(row.deliveries);
    r.take(row.at);
    r.take(row.progress);
    r.take(row.message);
    r.take(row.data);
}

void
read(TupleTableSlot *slot, LimitUseRow &row)
{
    Reader r(slot);
    r.take(row.key);
    r.take(row.kind);
    r.take(row.at);
    r.take(row.number);
    r.take(row.until);
    r.take(row.job_id);
    r.take(row.token);
    r.take(row.name);
}

void
read(TupleTableSlot *slot, JobBrief &row)
{
    enum { created_at = 3, flags = 4, uniq = 14, n_wanted };
    slot_getsomeattrs(slot, n_wanted);
    row.created_at = DatumGetTimestampTz(slot->tts_values[created_at]);
    row.flags = DatumGetInt32(slot->tts_values[flags]);
    row.uniq = slot->tts_isnull[uniq] ? nullptr : DatumGetJsonbP(slot->tts_values[uniq]);
}

void
read(TupleTableSlot *slot, DoneBrief &row)
{
    enum { job_id = 0, finished_at = 1, queue = 2, state = 6, flags = 7, n_wanted };
    slot_getsomeattrs(slot, n_wanted);
    row.job_id = *DatumGetUUIDP(slot->tts_values[job_id]);
    row.finished_at = DatumGetTimestampTz(slot->tts_values[finished_at]);
    row.queue = DatumGetInt64(slot->tts_values[queue]);
    row.state = static_cast<State>(DatumGetInt16(slot->tts_values[state]));
    row.flags = DatumGetInt16(slot->tts_values[flags]);
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
