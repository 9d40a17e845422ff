/*
 * name_hash.cpp: see name_hash.h.
 */
#include "ojs/store/name_hash.h"

#include "ojs/pg/args.h"
#include "ojs/pg/error.h"
#include "ojs/pg/guard.h"
#include "ojs/store/small_table.h"

namespace ojs
{

namespace
{

/* Columns of ojs_store.name_key. */
enum { col_key, col_made_at, n_cols };

struct Key {
    uint64 halves[2];
};

Key key;
bool key_known;
uint64 key_generation; /* of the table when the key was read */

/* Up to eight bytes, the first one lowest. */
uint64
word_of(const unsigned char *bytes, size_t n)
{
    uint64 word = 0;
    for (size_t i = 0; i < n; i++)
        word |= static_cast<uint64>(bytes[i]) << (8 * i);
    return word;
}

constexpr uint64
rotated(uint64 word, int bits)
{
    return word << bits | word >> (64 - bits);
}

struct Sip {
    uint64 a, b, c, d;

    void round(int times)
    {
        while (times-- > 0) {
            a += b;
            b = rotated(b, 13) ^ a;
            a = rotated(a, 32);
            c += d;
            d = rotated(d, 16) ^ c;
            a += d;
            d = rotated(d, 21) ^ a;
            c += b;
            b = rotated(b, 17) ^ c;
            c = rotated(c, 32);
        }
    }

    void add(uint64 word)
    {
        d ^= word;
        round(2);
        a ^= word;
    }
};

uint64
siphash(std::string_view text)
{
    const auto *bytes = reinterpret_cast<const unsigned char *>(text.data());
    auto [k0, k1] = key.halves;
    Sip sip = {k0 ^ UINT64CONST(0x736f6d6570736575), k1 ^ UINT64CONST(0x646f72616e646f6d),
               k0 ^ UINT64CONST(0x6c7967656e657261), k1 ^ UINT64CONST(0x7465646279746573)};
    size_t whole = text.size() & ~static_cast<size_t>(7);
    for (size_t i = 0; i < whole; i += 8)
        sip.add(word_of(bytes + i, 8));
    sip.add(word_of(bytes + whole, text.size() - whole) | static_cast<uint64>(text.size()) << 56);
    sip.c ^= 0xff;
    sip.round(4);
    return sip.a ^ sip.b ^ sip.c ^ sip.d;
}

/*
 * The oldest key holds: CREATE EXTENSION makes one, and a restore adds the one that the dumped ids were made with.
 * Not the statement's snapshot: what is committed now.
 */
void
read_key()
{
    TimestampTz oldest = DT_NOEND;
    key_generation = store::catalog_generation(store::Rel::name_key);
    key_known = false;
    store::each_row(store::Rel::name_key, [&](TupleTableSlot *slot) {
        slot_getallattrs(slot);
        TimestampTz made_at = DatumGetTimestampTz(slot->tts_values[col_made_at]);
        if (key_known && made_at >= oldest)
            return true;
        const unsigned char *bytes = DatumGetUUIDP(slot->tts_values[col_key])->data;
        key = {{word_of(bytes, 8), word_of(bytes + 8, 8)}};
        oldest = made_at;
        key_known = true;
        return true;
    });
    if (!key_known)
        raise(Code::unavailable, Details().add("relation", "name_key"),
              "Restore the row of ojs_store.name_key from a dump.", "the key of this database's queue ids is missing");
}

} // namespace

int64
name_hash(std::string_view name)
{
    if (!key_known || key_generation != store::catalog_generation(store::Rel::name_key))
        read_key();
    return static_cast<int64>(siphash(name));
}

} // namespace ojs

using namespace ojs;

/* ojs_store.name_hash(name text) returns bigint */
OJS_FUNCTION(ojs_name_hash)
{
    PG_RETURN_INT64(name_hash(view(PG_GETARG_TEXT_PP(0))));
}
