/*
 * near_name.cpp: see near_name.h.
 */
#include "ojs/pg/near_name.h"

namespace ojs
{

namespace
{

constexpr size_t shortest = 4; /* of these letters one may be wrong; names of fewer are near too many words */

FoldedName
folded(std::string_view name)
{
    FoldedName out = {};
    for (char c : name)
        if (c != '_' && c != '-' && out.n < sizeof out.text)
            out.text[out.n++] = static_cast<char>(pg_ascii_tolower(static_cast<unsigned char>(c)));
    return out;
}

bool
nearly_equal(std::string_view s, std::string_view t)
{
    size_t same = 0;
    while (same < std::min(s.size(), t.size()) && s[same] == t[same])
        same++;
    auto rest = [same](std::string_view text, size_t skip) { return text.substr(std::min(same + skip, text.size())); };
    if (s.size() == t.size() + 1)
        return rest(s, 1) == rest(t, 0);
    if (s.size() + 1 == t.size())
        return rest(s, 0) == rest(t, 1);
    if (s.size() != t.size())
        return false;
    bool swapped = same + 1 < s.size() && s[same] == t[same + 1] && s[same + 1] == t[same];
    return rest(s, 1) == rest(t, 1) || (swapped && rest(s, 2) == rest(t, 2));
}

} // namespace

NearName
near_name(std::string_view given)
{
    return {{}, false, folded(given)};
}

void
offer(NearName &near, std::string_view known)
{
    if (near.spelt_alike)
        return;
    FoldedName other = folded(known);
    std::string_view s(near.given.text, near.given.n);
    std::string_view t(other.text, other.n);
    near.spelt_alike = s == t;
    if (near.spelt_alike || (near.known.empty() && t.size() >= shortest && nearly_equal(s, t)))
        near.known = known;
}

} // namespace ojs
