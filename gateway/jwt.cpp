/*
 * jwt.cpp: see jwt.h.
 */
#include "jwt.h"

#include <ctime>
#include <fstream>
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

} // namespace

JwtVerifier::JwtVerifier(const std::string &key_file, std::string audience, std::string role_claim)
    : secret(read_file(key_file, false)), audience(std::move(audience)), role_claim(std::move(role_claim))
{
    /* What is a key in any form is never a secret: whoever knows a public key could sign with it. */
    if (secret.find("-----BEGIN") != secret.npos || secret.starts_with("{") || secret.starts_with("ssh-") ||
        secret.starts_with("\x30\x82")) {
        BIO *bio = BIO_new_mem_buf(secret.data(), static_cast<int>(secret.size()));
        public_key.reset(PEM_read_bio_PUBKEY(bio, nullptr, nullptr, nullptr));
        BIO_free(bio);
        if (!public_key || EVP_PKEY_base_id(public_key.get()) != EVP_PKEY_RSA || EVP_PKEY_bits(public_key.get()) < 2048)
            throw std::runtime_error(key_file + " holds no public RSA key of 2048 bits or more");
        secret.clear();
    } else if (read_file(key_file, true).size() < 32) {
        throw std::runtime_error("the secret in " + key_file + " is shorter than 32 bytes");
    }
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
