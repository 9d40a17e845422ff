/*
 * row.h: values to tuples, and sets of them. heap_form_tuple() goes through the columns twice, and calls a function for
 * each; where rows are made by the hundred that is a tenth of all work. The tuples are the same.
 */
#pragma once

#include "ojs/pg/pg.h"

namespace ojs
{

/* Writes the values of a tuple one after the other, each where heap_form_tuple() would put it. */
class RowWriter {
public:
    /* Of so many columns; `room` is what their values take, at most. */
    RowWriter(int columns, bool any_null, Size room)
    {
        Size start = MAXALIGN(SizeofHeapTupleHeader + (any_null ? BITMAPLEN(columns) : 0));
        tuple = static_cast<HeapTuple>(palloc(HEAPTUPLESIZE + start + room));
        header = reinterpret_cast<HeapTupleHeader>(reinterpret_cast<char *>(tuple) + HEAPTUPLESIZE);
        memset(header, 0, start);
        at = reinterpret_cast<char *>(header) + start;
        present = any_null ? header->t_bits : nullptr;
        header->t_hoff = static_cast<uint8>(start);
        header->t_infomask = any_null ? HEAP_HASNULL : 0;
        HeapTupleHeaderSetNatts(header, columns);
        ItemPointerSetInvalid(&header->t_ctid);
        ItemPointerSetInvalid(&tuple->t_self);
        tuple->t_tableOid = InvalidOid;
        tuple->t_data = header;
    }

    /* The next column is null. */
    void none() { column++; }

    /* A type of fixed width: of the size and the alignment of `Value`. */
    template <typename Value> void fixed(const Value &value)
    {
        begin(alignof(Value));
        memcpy(at, &value, sizeof value);
        at += sizeof value;
    }
    void fixed(const void *value, Size size, Size alignment)
    {
        begin(alignment);
        memcpy(at, value, size);
        at += size;
    }

    /* A type of variable width that may have a short header; `alignment` is for values that have none. */
    void varlena(const void *value, Size alignment = ALIGNOF_INT)
    {
        Assert(!VARATT_IS_EXTERNAL_EXPANDED(value));
        header->t_infomask |= HEAP_HASVARWIDTH;
        if (VARATT_CAN_MAKE_SHORT(value)) {
            begin(1);
            Size size = VARATT_CONVERTED_SHORT_SIZE(value);
            SET_VARSIZE_SHORT(at, size);
            memcpy(at + VARHDRSZ_SHORT, VARDATA(value), size - VARHDRSZ_SHORT);
            at += size;
            return;
        }
        if (VARATT_IS_EXTERNAL(value))
            header->t_infomask |= HEAP_HASEXTERNAL;
        fixed(value, VARSIZE_ANY(value), VARATT_IS_4B(value) ? alignment : 1);
    }
    static Size room_for_varlena(const void *value) { return VARSIZE_ANY(value) + ALIGNOF_DOUBLE; }

    HeapTuple finish()
    {
        tuple->t_len = static_cast<uint32>(at - reinterpret_cast<char *>(header));
        return tuple;
    }

private:
    HeapTuple tuple;
    HeapTupleHeader header;
    bits8 *present; /* null if all are */
    char *at;
    int column = 0;

    void begin(Size alignment)
    {
        auto offset = static_cast<Size>(at - reinterpret_cast<char *>(header));
        for (Size gap = TYPEALIGN(alignment, offset) - offset; gap > 0; gap--)
            *at++ = 0;
        if (present != nullptr)
            present[column >> 3] |= static_cast<bits8>(1 << (column & 7));
        column++;
    }
};

/* A row for a table or a set. Not for a datum: how the server marks one is its own affair. */
HeapTuple form_row(TupleDesc columns, const Datum *values, const bool *nulls);

/*
 * A set is returned in one piece. The caller knows what its rows look like, so no description of them is made: the
 * server's own InitMaterializedSRF() makes two, which costs a claim more than it costs to find a job's envelope.
 */
inline ReturnSetInfo *
begin_set(FunctionCallInfo fcinfo)
{
    auto *set = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
    if (set == nullptr || !IsA(set, ReturnSetInfo) || !(set->allowedModes & SFRM_Materialize) ||
        set->expectedDesc == nullptr)
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("set-valued function called in context that cannot accept a set")));
    MemoryContext old = MemoryContextSwitchTo(set->econtext->ecxt_per_query_memory);
    set->returnMode = SFRM_Materialize;
    set->setResult = tuplestore_begin_heap((set->allowedModes & SFRM_Materialize_Random) != 0, false, work_mem);
    MemoryContextSwitchTo(old);
    return set;
}

/* Adds a row to that set. */
template <int n>
void
put_row(ReturnSetInfo *set, const Datum (&values)[n], const bool (&nulls)[n])
{
    if (set->expectedDesc->natts != n)
        elog(ERROR, "a row has %d columns and not %d", n, set->expectedDesc->natts);
    HeapTuple row = form_row(set->expectedDesc, values, nulls);
    tuplestore_puttuple(set->setResult, row);
    pfree(row);
}

} // namespace ojs
