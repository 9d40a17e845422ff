/*
 * row.cpp: see row.h.
 */
#include "ojs/pg/row.h"

namespace ojs
{

namespace
{

Size
alignment_of(char attalign)
{
    switch (attalign) {
    case TYPALIGN_CHAR:
        return 1;
    case TYPALIGN_SHORT:
        return ALIGNOF_SHORT;
    case TYPALIGN_INT:
        return ALIGNOF_INT;
    default:
        return ALIGNOF_DOUBLE;
    }
}

inline void
put(RowWriter &out, Form_pg_attribute column, Datum value)
{
    int length = column->attlen;
    if (length == -1)
        out.varlena(DatumGetPointer(value), alignment_of(column->attalign));
    else if (!column->attbyval)
        out.fixed(DatumGetPointer(value), static_cast<Size>(length), alignment_of(column->attalign));
    else if (length == sizeof(int64))
        out.fixed(DatumGetInt64(value));
    else if (length == sizeof(int32))
        out.fixed(DatumGetInt32(value));
    else if (length == sizeof(int16))
        out.fixed(DatumGetInt16(value));
    else
        out.fixed(DatumGetChar(value));
}

} // namespace

HeapTuple
form_row(TupleDesc columns, const Datum *values, const bool *nulls)
{
    Size room = 0;
    bool any_null = false;
    for (int i = 0; i < columns->natts; i++) {
        if (nulls[i]) {
            any_null = true;
            continue;
        }
        int length = TupleDescAttr(columns, i)->attlen;
        room += length == -1 ? RowWriter::room_for_varlena(DatumGetPointer(values[i]))
                             : static_cast<Size>(length) + ALIGNOF_DOUBLE;
    }
    RowWriter out(columns->natts, any_null, room);
    for (int i = 0; i < columns->natts; i++) {
        if (nulls[i])
            out.none();
        else
            put(out, TupleDescAttr(columns, i), values[i]);
    }
    return out.finish();
}

} // namespace ojs
