/*
 * json_schema_formats.cpp: the formats of JSON Schema that are checked: date, time, date-time, email, ipv4, ipv6, uri
 * and uuid.
 */
#include "ojs/job/json_schema.h"

namespace ojs
{

namespace
{

bool
is_digit(char c)
{
    return c >= '0' && c <= '9';
}

bool
is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool
is_hex(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* Takes exactly `digits` digits from the front; -1 if they are not there. */
int
take_number(std::string_view &text, size_t digits)
{
    int n = 0;
    if (text.size() < digits)
        return -1;
    for (size_t i = 0; i < digits; i++) {
        if (!is_digit(text[i]))
            return -1;
        n = n * 10 + (text[i] - '0');
    }
    text.remove_prefix(digits);
    return n;
}

bool
take(std::string_view &text, std::string_view any_of)
{
    if (text.empty() || any_of.find(text[0]) == any_of.npos)
        return false;
    text.remove_prefix(1);
    return true;
}

bool
take_date(std::string_view &text)
{
    int year = take_number(text, 4);
    bool dashed = take(text, "-");
    int month = take_number(text, 2);
    dashed = take(text, "-") && dashed;
    int day = take_number(text, 2);
    if (year < 0 || !dashed || month < 1 || month > 12 || day < 1)
        return false;
    return day <= day_tab[isleap(year)][month - 1];
}

/* A leap second stands at 23:59:60 in UTC only. */
bool
take_time(std::string_view &text)
{
    int hour = take_number(text, 2);
    bool good = take(text, ":");
    int minute = take_number(text, 2);
    good = take(text, ":") && good;
    int second = take_number(text, 2);
    if (!good || hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 60)
        return false;
    if (take(text, ".")) {
        size_t digits = 0;
        while (digits < text.size() && is_digit(text[digits]))
            digits++;
        if (digits == 0)
            return false;
        text.remove_prefix(digits);
    }
    int offset = 0;
    if (!take(text, "zZ")) {
        bool ahead = !text.empty() && text[0] == '+';
        if (!take(text, "+-"))
            return false;
        int hours = take_number(text, 2);
        bool colon = take(text, ":");
        int minutes = take_number(text, 2);
        if (!colon || hours < 0 || hours > 23 || minutes < 0 || minutes > 59)
            return false;
        offset = (hours * 60 + minutes) * (ahead ? 1 : -1);
    }
    constexpr int day = 24 * 60;
    return second < 60 || (hour * 60 + minute - offset + 2 * day) % day == day - 1;
}

bool
is_ipv4(std::string_view text)
{
    for (int part = 0; part < 4; part++) {
        size_t digits = 0;
        int n = 0;
        if (part > 0 && !take(text, "."))
            return false;
        while (digits < text.size() && digits < 4 && is_digit(text[digits]))
            n = n * 10 + (text[digits++] - '0');
        if (digits == 0 || n > 255 || (digits > 1 && text[0] == '0'))
            return false;
        text.remove_prefix(digits);
    }
    return text.empty();
}

bool
is_ipv6(std::string_view text)
{
    int groups = 0;
    bool gap = false;
    if (text.starts_with("::")) {
        gap = true;
        text.remove_prefix(2);
    } else if (text.starts_with(":"))
        return false;
    while (!text.empty()) {
        size_t digits = 0;
        while (digits < text.size() && is_hex(text[digits]))
            digits++;
        if (digits < text.size() && text[digits] == '.') {
            groups += 2;
            return is_ipv4(text) && (gap ? groups < 8 : groups == 8);
        }
        if (digits == 0 || digits > 4)
            return false;
        groups++;
        text.remove_prefix(digits);
        if (text.empty())
            break;
        if (text.starts_with("::")) {
            if (gap)
                return false;
            gap = true;
            text.remove_prefix(2);
        } else if (!take(text, ":") || text.empty())
            return false;
    }
    return gap ? groups < 8 : groups == 8;
}

bool
is_hostname(std::string_view text)
{
    if (text.empty() || text.size() > 253)
        return false;
    while (!text.empty()) {
        std::string_view label = text.substr(0, text.find('.'));
        bool last = label.size() == text.size();
        if (label.empty() || label.size() > 63 || label.front() == '-' || label.back() == '-')
            return false;
        for (char c : label)
            if (!is_letter(c) && !is_digit(c) && c != '-')
                return false;
        if (!last && label.size() + 1 == text.size())
            return false;
        text.remove_prefix(label.size() + (last ? 0 : 1));
    }
    return true;
}

bool
is_email(std::string_view text)
{
    size_t at = text.rfind('@');
    if (at == text.npos || at == 0 || at > 64)
        return false;
    std::string_view local = text.substr(0, at);
    std::string_view domain = text.substr(at + 1);
    if (local.size() > 1 && local.front() == '"' && local.back() == '"') {
        for (char c : local.substr(1, local.size() - 2))
            if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20)
                return false;
    } else {
        char before = '.';
        for (char c : local) {
            bool atom = is_letter(c) || is_digit(c) || strchr("!#$%&'*+/=?^_`{|}~-", c) != nullptr;
            if (!atom && (c != '.' || before == '.'))
                return false;
            before = c;
        }
        if (before == '.')
            return false;
    }
    if (domain.starts_with("[") && domain.ends_with("]")) {
        domain = domain.substr(1, domain.size() - 2);
        return domain.starts_with("IPv6:") ? is_ipv6(domain.substr(5)) : is_ipv4(domain);
    }
    return is_hostname(domain);
}

bool
is_uri(std::string_view text)
{
    size_t colon = text.find(':');
    if (colon == text.npos || colon == 0 || !is_letter(text[0]))
        return false;
    for (char c : text.substr(0, colon))
        if (!is_letter(c) && !is_digit(c) && strchr("+-.", c) == nullptr)
            return false;
    std::string_view rest = text.substr(colon + 1);
    std::string_view host;
    if (rest.starts_with("//")) {
        host = rest.substr(2, std::min(rest.find_first_of("/?#", 2), rest.size()) - 2);
        size_t user = host.find('@');
        if (user != host.npos && host.find_first_of("[]") < user)
            return false;
        host.remove_prefix(user == host.npos ? 0 : user + 1);
        size_t port = host.starts_with("[") ? host.find(']') : host.find(':');
        if (host.starts_with("[")) {
            if (port == host.npos || !is_ipv6(host.substr(1, port - 1)))
                return false;
            port++;
        }
        if (port < host.size() && (host[port] != ':' || host.find_first_not_of("0123456789", port + 1) != host.npos))
            return false;
    }
    bool fragment = false;
    for (size_t i = 0; i < rest.size(); i++) {
        char c = rest[i];
        bool in_host = !host.empty() && rest.data() + i >= host.data() && rest.data() + i < host.data() + host.size();
        if (c == '%') {
            if (i + 2 >= rest.size() || !is_hex(rest[i + 1]) || !is_hex(rest[i + 2]))
                return false;
        } else if (c == '#') {
            if (fragment)
                return false;
            fragment = true;
        } else if (!is_letter(c) && !is_digit(c) && (c == '\0' || strchr("-._~:/?@!$&'()*+,;=", c) == nullptr) &&
                   !(in_host && (c == '[' || c == ']')))
            return false;
    }
    return true;
}

bool
is_uuid(std::string_view text)
{
    if (text.size() != 36)
        return false;
    for (size_t i = 0; i < text.size(); i++)
        if (i == 8 || i == 13 || i == 18 || i == 23 ? text[i] != '-' : !is_hex(text[i]))
            return false;
    return true;
}

} // namespace

bool
has_format(std::string_view format, std::string_view text)
{
    if (format == "email")
        return is_email(text);
    if (format == "date")
        return take_date(text) && text.empty();
    if (format == "time")
        return take_time(text) && text.empty();
    if (format == "date-time")
        return take_date(text) && take(text, "tT") && take_time(text) && text.empty();
    if (format == "ipv4")
        return is_ipv4(text);
    if (format == "ipv6")
        return is_ipv6(text);
    if (format == "uri")
        return is_uri(text);
    if (format == "uuid")
        return is_uuid(text);
    return true;
}

} // namespace ojs
