/*
 * jwt.h: JSON Web Tokens (RFC 7519), signed with one key that is known beforehand.
 */
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <openssl/evp.h>

namespace gateway
{

class JwtVerifier {
public:
    /*
     * A file with a public RSA key in PEM: tokens are to be signed with RS256; else a shared secret of 32 bytes or
     * more: HS256. A token cannot choose, and a key in another form is refused. `audience` empty: tokens that are for
     * an audience are refused. Throws std::runtime_error.
     */
    JwtVerifier(const std::string &key_file, std::string audience, std::string role_claim);

    /* The role that a valid token names; nothing for every other text. */
    std::optional<std::string> role_of(std::string_view token) const;

    /* The algorithm and the size of the key. */
    std::string kind() const;

private:
    bool is_signed(std::string_view content, const std::string &signature) const;

    struct Freer {
        void operator()(EVP_PKEY *key) const { EVP_PKEY_free(key); }
    };
    std::unique_ptr<EVP_PKEY, Freer> public_key; /* null: the secret counts */
    std::string secret;
    const std::string audience;
    const std::string role_claim;
};

/*
 * The content of a small file, without the line end that editors leave. A secret is not taken from a file that
 * everybody on the machine may read. Throws std::runtime_error.
 */
std::string read_file(const std::string &path, bool secret);

} // namespace gateway
