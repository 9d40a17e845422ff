/*
 * jwt.cpp: see jwt.h.
 */
#include "jwt.h"

#include <algorithm>
#include <cctype>
#include <ctime>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include <jansson.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <sys/stat.h>

namespace gateway
{

namespace
{

constexpr double leeway = 30; /* seconds that two clocks may differ */

struct JsonFreer {
    void operator()(json_t *json) const { json_decref(json); }
};
using Json = std::unique_ptr<json_t, JsonFreer>;

std::optional<std::string>
base64url_decoded(std::string_view text)
{
    constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    std::string bytes;
    unsigned bits = 0, value = 0;
    for (char c : text) {
        size_t digit = digits.find(c);
        if (digit == digits.npos)
            return {};
        value = (value << 6 | static_cast<unsigned>(digit)) & 0xffff;
        if ((bits += 6) >= 8)
            bytes += static_cast<char>(value >> (bits -= 8));
    }
    return bytes;
}

Json
json_of(std::string_view part)
{
    std::optional<std::string> text = base64url_decoded(part);
    if (!text)
        return nullptr;
    Json json(json_loadb(text->data(), text->size(), JSON_REJECT_DUPLICATES, nullptr));
    return json_is_object(json.get()) ? std::move(json) : nullptr;
}

bool
is_text(const json_t *json, std::string_view text)
{
    return json_is_string(json) && std::string_view(json_string_value(json), json_string_length(json)) == text;
}

bool
names_audience(const json_t *claim, const std::string &audience)
{
    if (claim == nullptr)
        return audience.empty();
    if (audience.empty())
        return false;
    for (size_t i = 0; i < json_array_size(claim); i++)
        if (is_text(json_array_get(claim, i), audience))
            return true;
    return is_text(claim, audience);
}

std::string
without(std::string_view text, std::string_view unwanted)
{
    std::string rest;
    std::ranges::copy_if(text, std::back_inserter(rest), [&](char c) { return unwanted.find(c) == unwanted.npos; });
    return rest;
}

std::string
base64_decoded(std::string_view text)
{
    std::string digits = without(text, "= \t\r\n\"'");
    std::ranges::replace(digits, '+', '-');
    std::ranges::replace(digits, '/', '_');
    return base64url_decoded(digits).value_or("");
}

std::string
hex_decoded(std::string_view text)
{
    constexpr std::string_view digits = "0123456789abcdef";
    std::string given = without(text, ": \t\r\n"), bytes;
    for (size_t i = 0; i + 1 < given.size(); i += 2) {
        size_t high = digits.find(static_cast<char>(tolower(static_cast<unsigned char>(given[i])))),
               low = digits.find(static_cast<char>(tolower(static_cast<unsigned char>(given[i + 1]))));
        if (high == digits.npos || low == digits.npos)
            return "";
        bytes += static_cast<char>(high << 4 | low);
    }
    return bytes;
}

/* Whether this is one SEQUENCE that begins as keys and certificates do. read_file() may have cut line ends off it. */
bool
is_der(std::string_view bytes)
{
    auto at = [&](size_t i) { return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0u; };
    if (at(0) != 0x30)
        return false;
    size_t lengths = at(1) > 0x80 && at(1) <= 0x84 ? at(1) - 0x80 : 0, length = lengths == 0 ? at(1) : 0;
    for (size_t i = 0; i < lengths; i++)
        length = length << 8 | at(2 + i);
    size_t begin = 2 + lengths, rest = bytes.size() - std::min(begin, bytes.size());
    return length >= 16 && rest <= length && rest + 2 >= length && (at(begin) == 0x30 || at(begin) == 0x02);
}

/* As in the second word of a line of authorized_keys. */
bool
is_ssh_key(std::string_view bytes)
{
    std::string_view name = bytes.substr(std::min<size_t>(4, bytes.size()));
    return bytes.starts_with(std::string_view("\0\0\0", 3)) &&
           (name.starts_with("ssh-") || name.starts_with("ecdsa-") || name.starts_with("sk-"));
}

/* Whether a text is a key, or a list of keys, in some form. Random text is none. */
bool
is_key(std::string_view text, int nested = 0)
{
    text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n\xef\xbb\xbf"), text.size()));
    if (is_der(text) || is_ssh_key(text))
        return true;
    /* Without marks of byte order, and the NUL bytes of UTF-16. */
    std::string plain = without(text, std::string_view("\0\xef\xbb\xbf\xff\xfe", 6));
    std::istringstream words(plain);
    std::string first, word;
    words >> first;
    for (const char *mark : {"-----BEGIN", "---- BEGIN", "PuTTY-User-Key-File", "<RSAKeyValue"})
        if (plain.find(mark) != plain.npos)
            return true;
    for (const char *mark : {"{", "[", "ssh-", "ecdsa-", "sk-"})
        if (nested == 0 && first.starts_with(mark))
            return true;
    for (word = first; !word.empty(); word = words >> word ? word : "")
        if (is_ssh_key(base64_decoded(word)))
            return true;
    std::string base64 = base64_decoded(plain), hex = hex_decoded(plain);
    Json json(json_loadb(base64.data(), base64.size(), 0, nullptr));
    return json || is_der(hex) || is_ssh_key(hex) || (nested < 2 && !base64.empty() && is_key(base64, nested + 1));
}

} // namespace

JwtVerifier::JwtVerifier(const std::string &key_file, std::string audience, std::string role_claim)
    : secret(read_file(key_file, false)), audience(std::move(audience)), role_claim(std::move(role_claim))
{
    /* Whoever knows a public key could sign with it as a secret. */
    if (is_key(secret)) {
        BIO *bio = BIO_new_mem_buf(secret.data(), static_cast<int>(secret.size()));
        public_key.reset(PEM_read_bio_PUBKEY(bio, nullptr, nullptr, nullptr));
        BIO_free(bio);
        if (!public_key || EVP_PKEY_base_id(public_key.get()) != EVP_PKEY_RSA || EVP_PKEY_bits(public_key.get()) < 2048)
            throw std::runtime_error(key_file +
                                     " holds a key, which is never taken for a secret, but no public RSA key "
                                     "of 2048 bits or more in PEM");
        secret.clear();
    } else if (read_file(key_file, true).size() < 32) {
        throw std::runtime_error("the secret in " + key_file + " is shorter than 32 bytes");
    }
}

std::string
JwtVerifier::kind() const
{
    return public_key ? "RS256, with the public key of " + std::to_string(EVP_PKEY_bits(public_key.get())) + " bits"
                      : "HS256, with the secret of " + std::to_string(secret.size()) + " bytes";
}

bool
JwtVerifier::is_signed(std::string_view content, const std::string &signature) const
{
    const auto *bytes = reinterpret_cast<const unsigned char *>(content.data());
    const auto *given = reinterpret_cast<const unsigned char *>(signature.data());
    if (!public_key) {
        unsigned char right[EVP_MAX_MD_SIZE];
        unsigned size = 0;
        return HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), bytes, content.size(), right,
                    &size) &&
               signature.size() == size && CRYPTO_memcmp(right, given, size) == 0;
    }
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool good = context != nullptr &&
                EVP_DigestVerifyInit(context, nullptr, EVP_sha256(), nullptr, public_key.get()) == 1 &&
                EVP_DigestVerify(context, given, signature.size(), bytes, content.size()) == 1;
    EVP_MD_CTX_free(context);
    return good;
}

std::optional<std::string>
JwtVerifier::role_of(std::string_view token) const
{
    size_t first = token.find('.'), last = token.rfind('.');
    if (first == last || token.find('.', first + 1) != last)
        return {};
    std::optional<std::string> signature = base64url_decoded(token.substr(last + 1));
    if (!signature || !is_signed(token.substr(0, last), *signature))
        return {};
    Json header = json_of(token.substr(0, first)), claims = json_of(token.substr(first + 1, last - first - 1));
    if (!header || !claims || !is_text(json_object_get(header.get(), "alg"), public_key ? "RS256" : "HS256") ||
        json_object_get(header.get(), "crit") != nullptr)
        return {};

    auto now = static_cast<double>(time(nullptr));
    const json_t *ends = json_object_get(claims.get(), "exp"), *begins = json_object_get(claims.get(), "nbf");
    const json_t *role = json_object_get(claims.get(), role_claim.c_str());
    bool valid = json_is_number(ends) && now < json_number_value(ends) + leeway &&
                 (begins == nullptr || (json_is_number(begins) && now > json_number_value(begins) - leeway)) &&
                 names_audience(json_object_get(claims.get(), "aud"), audience) && json_string_length(role) > 0;
    if (!valid)
        return {};
    return std::string(json_string_value(role), json_string_length(role));
}

std::string
read_file(const std::string &path, bool secret)
{
    struct stat found;
    if (secret && stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) && (found.st_mode & 0007) != 0)
        throw std::runtime_error(path + " holds secrets, and everybody may read it: chmod o= " + path);
    std::ifstream file(path, std::ios::binary);
    std::ostringstream content;
    if (!file || !(content << file.rdbuf()))
        throw std::runtime_error("cannot read " + path + ", or it is empty");
    std::string text = content.str();
    while (text.ends_with('\n') || text.ends_with('\r'))
        text.pop_back();
    return text;
}

} // namespace gateway
