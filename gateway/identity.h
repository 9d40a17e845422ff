/*
 * identity.h: who sends a request, as which role of PostgreSQL it is served.
 */
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "http.h"
#include "jwt.h"

namespace gateway
{

struct IdentityOptions {
    std::string token_file;
    std::string jwt_key;
    std::string jwt_audience;
    std::string jwt_role_claim = "role";
    std::string role_header;
    std::vector<std::string> roles; /* that a request may be served as */

    bool known() const { return !token_file.empty() || !jwt_key.empty() || !role_header.empty(); }
};

class Identity {
public:
    /* Throws std::runtime_error. */
    explicit Identity(const IdentityOptions &options);

    /* Reads the files of the options again, for all requests from then on. Throws std::runtime_error; nothing changes
     * then. */
    void reload();

    /* The role; empty: that of the gateway's own connection. Throws Refusal: 401, 403. */
    std::string role_of(const Request &request, const Peer &peer) const;
    /* Headers that are for the gateway alone. */
    bool is_secret(std::string_view header) const;

private:
    struct Token {
        std::string digest;
        std::string role;
    };
    struct Secrets {
        std::vector<Token> tokens;
        std::optional<JwtVerifier> verifier;
        std::optional<std::string> role_of_bearer(const Request &request) const;
    };
    std::vector<Token> read_tokens() const;
    std::shared_ptr<const Secrets> current() const;

    const IdentityOptions options;
    mutable std::mutex mutex;
    std::shared_ptr<const Secrets> secrets;
};

} // namespace gateway
