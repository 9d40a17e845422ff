/*
 * reuse.cpp: the space of hot rows that have been taken.
 *
 * Rows of ready and lease live for a moment, and vacuum comes once a minute: until then each new row would go to a new
 * page, which has to be found in memory, written and forgotten. The server removes dead rows from a page whenever it
 * passes by, but tells nobody that there is room. So a session remembers the pages that it has taken rows from, and
 * tells the free space map of them when it has gone on to others. The entries of indexes, and the line pointers that
 * they lead to, stay until vacuum: so a page is used about five times.
 */
#include "ojs/store/store.h"

namespace ojs::store
{

namespace
{

/* The last pages of one table that this session has taken rows from, oldest first. Only hints. So many that a page has
 * mostly been left for a while, by the session's transaction too, when its turn comes. */
struct TakenPages {
    Oid table;
    int n;
    BlockNumber at[16];
};
TakenPages ready_pages, lease_pages;

TakenPages *
pages_of(const Table &table)
{
    TakenPages *pages = table.which == Rel::ready ? &ready_pages : table.which == Rel::lease ? &lease_pages : nullptr;
    if (pages != nullptr && pages->table != RelationGetRelid(table.rel))
        *pages = {RelationGetRelid(table.rel), 0, {}};
    return pages;
}

bool
mostly_taken(Page page)
{
    int rows = PageGetMaxOffsetNumber(page);
    int left = 0;
    for (OffsetNumber i = FirstOffsetNumber; i <= rows; i++) {
        ItemId item = PageGetItemId(page, i);
        if (ItemIdIsNormal(item))
            left += reinterpret_cast<HeapTupleHeader>(PageGetItem(page, item))->t_infomask & HEAP_XMAX_INVALID ? 1 : 0;
    }
    return left * 2 <= rows;
}

void
tell_free_space(Relation rel, BlockNumber block)
{
    if (!has_block(rel, block))
        return;
    Buffer buffer = ReadBuffer(rel, block);
    Page page = BufferGetPage(buffer);
    LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
    bool worth_it = mostly_taken(page);
    if (worth_it)
        PageSetFull(page); /* else the server does not touch what the fill factor keeps free for updates */
    LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
    if (worth_it)
        heap_page_prune_opt(rel, buffer);
    Size free = PageGetHeapFreeSpace(page); /* without a lock, as the server looks at it: a hint */
    ReleaseBuffer(buffer);
    if (worth_it && free > BLCKSZ / 4)
        RecordPageWithFreeSpace(rel, block, free);
}

} // namespace

void
note_taken(const Table &table, ItemPointer tid)
{
    TakenPages *pages = pages_of(table);
    BlockNumber block = ItemPointerGetBlockNumber(tid);
    if (pages == nullptr || std::find(pages->at, pages->at + pages->n, block) != pages->at + pages->n)
        return;
    if (pages->n == lengthof(pages->at)) {
        BlockNumber oldest = pages->at[0];
        std::copy(pages->at + 1, pages->at + pages->n--, pages->at); /* first: a page that cannot be read fails once */
        tell_free_space(table.rel, oldest);
    }
    pages->at[pages->n++] = block;
}

} // namespace ojs::store
