/*
 * webhook.cpp: what signs deliveries of webhooks. The rest is SQL: sql/webhook_deliveries.sql.
 */
#include "ojs/pg/args.h"
#include "ojs/pg/guard.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

using namespace ojs;

namespace
{

/* As it is sent, whatever the database's encoding. */
std::string_view
in_utf8(std::string_view text)
{
    const char *sent = pg_server_to_any(text.data(), static_cast<int>(text.size()), PG_UTF8);
    return sent == text.data() ? text : std::string_view(sent);
}

} // namespace

/* ojs_store.hmac_sha256(key text, content text) returns text: in hexadecimal digits, of the content in UTF-8 */
OJS_FUNCTION(ojs_hmac_sha256)
{
    std::string_view key = view(PG_GETARG_TEXT_PP(0));
    std::string_view content = in_utf8(view(PG_GETARG_TEXT_PP(1)));
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char *>(content.data()), content.size(), digest, &size) == nullptr)
        elog(ERROR, "could not compute an HMAC");
    char text[2 * EVP_MAX_MD_SIZE];
    (void)hex_encode(reinterpret_cast<const char *>(digest), size, text);
    PG_RETURN_TEXT_P(cstring_to_text_with_len(text, static_cast<int>(2 * size)));
}
