/*
 * identity.cpp: see identity.h.
 */
#include "identity.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include "log.h"
#include "refusal.h"

namespace gateway
{

namespace
{

std::string
digest_of(std::string_view text)
{
    std::string digest(SHA256_DIGEST_LENGTH, '\0');
    SHA256(reinterpret_cast<const unsigned char *>(text.data()), text.size(),
           reinterpret_cast<unsigned char *>(digest.data()));
    return digest;
}

} // namespace

/* A line of the file is a token, or a token and a role. */
std::vector<Identity::Token>
Identity::read_tokens() const
{
    std::vector<Token> tokens;
    std::istringstream file(read_file(options.token_file, true));
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string token, role, more;
        words >> token >> role >> more;
        if (token.empty() || token.starts_with('#'))
            continue;
        if (token.size() < 16 || !more.empty())
            throw std::runtime_error("a line of " + options.token_file +
                                     " is no token of 16 characters or more with at most a role behind it");
        tokens.push_back({digest_of(token), role});
    }
    if (tokens.empty())
        throw std::runtime_error("no token is in " + options.token_file);
    return tokens;
}

Identity::Identity(const IdentityOptions &options) : options(options)
{
    reload();
}

void
Identity::reload()
{
    auto fresh = std::make_shared<Secrets>();
    if (!options.jwt_key.empty())
        fresh->verifier.emplace(options.jwt_key, options.jwt_audience, options.jwt_role_claim);
    if (fresh->verifier)
        complain("tokens: " + fresh->verifier->kind() + " in " + options.jwt_key);
    if (!options.token_file.empty())
        fresh->tokens = read_tokens();
    std::lock_guard lock(mutex);
    secrets = std::move(fresh);
}

std::shared_ptr<const Identity::Secrets>
Identity::current() const
{
    std::lock_guard lock(mutex);
    return secrets;
}

std::optional<std::string>
Identity::Secrets::role_of_bearer(const Request &request) const
{
    const std::string *header = request.header("Authorization");
    if (header == nullptr || header->size() < 7 || !same_text(std::string_view(*header).substr(0, 7), "Bearer "))
        return {};
    std::string_view given = trimmed(std::string_view(*header).substr(7));
    std::string digest = digest_of(given);
    std::optional<std::string> role;
    for (const Token &token : tokens) /* all of them: the time tells nothing */
        if (CRYPTO_memcmp(token.digest.data(), digest.data(), digest.size()) == 0)
            role = token.role;
    return role || !verifier ? role : verifier->role_of(given);
}

std::string
Identity::role_of(const Request &request, const Peer &peer) const
{
    std::string role;
    std::shared_ptr<const Secrets> secrets = current();
    if (!secrets->tokens.empty() || secrets->verifier) {
        std::optional<std::string> of_bearer = secrets->role_of_bearer(request);
        if (!of_bearer)
            throw Refusal{401,
                          "unauthenticated",
                          "PERMISSION_DENIED",
                          "the request bears no valid token",
                          "Send Authorization: Bearer and a token.",
                          "WWW-Authenticate: Bearer realm=\"ojs\""};
        role = *of_bearer;
    }
    if (!options.role_header.empty()) {
        auto named = std::ranges::count_if(
            request.headers, [this](const auto &header) { return same_text(header.first, options.role_header); });
        if (!peer.local && named > 0)
            throw Refusal{403, "permission_denied", "PERMISSION_DENIED", "only a proxy on this machine may name a role",
                          "Leave out " + options.role_header + "."};
        if (!role.empty()) /* the token's own role is not to be changed */
            ;
        else if (named == 1 && !trimmed(*request.header(options.role_header)).empty())
            role = trimmed(*request.header(options.role_header));
        else if (named > 0 || secrets->tokens.empty())
            throw Refusal{401, "unauthenticated", "PERMISSION_DENIED", "the proxy has not named one role",
                          "Have the proxy set " + options.role_header + "."};
    }
    if (!role.empty() && std::ranges::find(options.roles, role) == options.roles.end())
        throw Refusal{403, "permission_denied", "PERMISSION_DENIED", "this gateway does not serve that role",
                      "--roles lists those that it serves."};
    return role;
}

bool
Identity::is_secret(std::string_view header) const
{
    return same_text(header, "Authorization") || same_text(header, "Cookie") ||
           (!options.role_header.empty() && same_text(header, options.role_header));
}

} // namespace gateway
