/*
 * inputs.h: reads values out of the bytes that libFuzzer makes up.
 */
#pragma once

#include "ojs/pg/json.h"

namespace
{

using namespace ojs;

/*
 * Reads JSON out of any bytes: what is missing is put in, what makes no sense is left out. So inputs look like JSON,
 * and each mutation of one is a value, too. What jsonb_in() accepts is read as it reads it.
 */
struct JsonReader {
    const char *at;
    const char *end;
    JsonbParseState *state = nullptr;

    bool done() const { return at >= end; }

    char32_t escaped()
    {
        char32_t code = 0;
        for (int i = 0; i < 4 && !done() && isxdigit(static_cast<unsigned char>(*at)); i++, at++)
            code = code * 16 + (*at <= '9' ? *at - '0' : (*at | 0x20) - 'a' + 10);
        return code;
    }

    JsonbValue string()
    {
        StringInfoData text;
        initStringInfo(&text);
        for (; !done() && *at != '"';) {
            unsigned char utf8[8] = {};
            int length = pg_utf_mblen(reinterpret_cast<const unsigned char *>(at));
            if (*at == '\\' && at + 1 < end) {
                constexpr std::string_view letters = "bfnrt";
                char letter = at[1];
                at += 2;
                size_t named = letters.find(letter);
                char32_t code = letter == 'u' ? escaped() : named != letters.npos ? "\b\f\n\r\t"[named] : letter & 0x7f;
                if (code >= 0xD800 && code < 0xE000)
                    code = 0x10000 + code; /* no halves of a pair */
                unicode_to_utf8(code == 0 ? '0' : code, utf8);
                appendBinaryStringInfo(&text, reinterpret_cast<char *>(utf8), pg_utf_mblen(utf8));
            } else if (length <= end - at && *at != '\0' &&
                       pg_utf8_islegal(reinterpret_cast<const unsigned char *>(at), length)) {
                appendBinaryStringInfo(&text, at, length);
                at += length;
            } else {
                appendStringInfoChar(&text, '?');
                at++;
            }
        }
        at++;
        return json_text({text.data, static_cast<size_t>(text.len)});
    }

    void digits(StringInfo text, int most)
    {
        if (done() || *at < '0' || *at > '9')
            appendStringInfoChar(text, '0');
        for (; !done() && *at >= '0' && *at <= '9'; at++)
            if (most-- > 0)
                appendStringInfoChar(text, *at);
    }

    JsonbValue number()
    {
        StringInfoData text;
        JsonbValue value;
        initStringInfo(&text);
        if (*at == '-')
            appendStringInfoChar(&text, *at++);
        digits(&text, 1000);
        if (!done() && *at == '.') {
            appendStringInfoChar(&text, *at++);
            digits(&text, 1000);
        }
        if (!done() && (*at == 'e' || *at == 'E')) {
            appendStringInfoChar(&text, *at++);
            if (!done() && (*at == '-' || *at == '+'))
                appendStringInfoChar(&text, *at++);
            digits(&text, 5);
        }
        value.type = jbvNumeric;
        value.val.numeric = DatumGetNumeric(DirectFunctionCall3(numeric_in, CStringGetDatum(text.data),
                                                                ObjectIdGetDatum(InvalidOid), Int32GetDatum(-1)));
        return value;
    }

    /* Skips to what a value begins with; '\0': nothing does, or the container ends before. */
    char next()
    {
        for (; !done(); at++) {
            if (strchr("\"[{tfn-0123456789", *at) != nullptr && *at != '\0')
                return *at;
            if (*at == ']' || *at == '}') {
                at++;
                break;
            }
        }
        return '\0';
    }

    JsonbValue scalar(char first)
    {
        JsonbValue value;
        if (first == '"') {
            at++;
            return string();
        }
        if (first == '-' || (first >= '0' && first <= '9'))
            return number();
        while (!done() && *at >= 'a' && *at <= 'z')
            at++;
        value.type = first == 'n' ? jbvNull : jbvBool;
        value.val.boolean = first == 't';
        return value;
    }

    JsonbValue *container(char first)
    {
        check_stack_depth();
        at++;
        pushJsonbValue(&state, first == '[' ? WJB_BEGIN_ARRAY : WJB_BEGIN_OBJECT, nullptr);
        for (char c; (c = next()) != '\0';) {
            if (first == '{') {
                JsonbValue key = c == '"' ? scalar(c) : json_text({at++, 1});
                pushJsonbValue(&state, WJB_KEY, &key);
                c = next();
                if (c == '\0') {
                    JsonbValue null;
                    null.type = jbvNull;
                    pushJsonbValue(&state, WJB_VALUE, &null);
                    break;
                }
            }
            if (c == '[' || c == '{') {
                (void)container(c);
                continue;
            }
            JsonbValue value = scalar(c);
            pushJsonbValue(&state, first == '[' ? WJB_ELEM : WJB_VALUE, &value);
        }
        return pushJsonbValue(&state, first == '[' ? WJB_END_ARRAY : WJB_END_OBJECT, nullptr);
    }

    Jsonb *read()
    {
        char first = next();
        if (first == '[' || first == '{')
            return JsonbValueToJsonb(container(first));
        JsonbValue value = scalar(first == '\0' ? 'n' : first);
        return JsonbValueToJsonb(&value);
    }
};

/* Null for what cannot be read, since a number in it is too large. */
Jsonb *
json_in(std::string_view text)
{
    Jsonb *json = nullptr;
    MemoryContext context = CurrentMemoryContext;
    PG_TRY();
    {
        json = JsonReader{text.data(), text.data() + text.size()}.read();
    }
    PG_CATCH();
    {
        MemoryContextSwitchTo(context);
        FlushErrorState();
    }
    PG_END_TRY();
    return json;
}

/* The n-th element of an array; null where there is none. */
Jsonb *
element(const Jsonb *json, uint32 n)
{
    JsonbValue *value =
        is_array(json) ? getIthJsonbValueFromContainer(const_cast<JsonbContainer *>(root_of(json)), n) : nullptr;
    return value == nullptr || value->type == jbvNull ? nullptr : jsonb_of(*value);
}

bool
same(const Jsonb *a, const Jsonb *b)
{
    return compareJsonbContainers(const_cast<JsonbContainer *>(root_of(a)), const_cast<JsonbContainer *>(root_of(b))) ==
           0;
}

std::string_view
line(std::string_view &rest)
{
    size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view found(rest.data(), end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return found;
}

} // namespace
