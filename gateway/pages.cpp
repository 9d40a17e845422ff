/*
 * pages.cpp: see pages.h.
 */
#include "pages.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "duties.h"
#include "page_files.h"

namespace gateway
{

namespace
{

constexpr std::string_view own_root = "/page/";
constexpr std::string_view root = "/ojs/admin/";
constexpr std::string_view index_page = "index.html";
constexpr size_t most_bytes = 64 << 20; /* all files together */

struct Type {
    std::string_view ending, media_type;
};
constexpr Type types[] = {
    {".html", "text/html; charset=utf-8"},
    {".js", "text/javascript; charset=utf-8"},
    {".css", "text/css; charset=utf-8"},
    {".json", "application/json"},
    {".svg", "image/svg+xml"},
    {".png", "image/png"},
    {".ico", "image/x-icon"},
    {".woff2", "font/woff2"},
    {".map", "application/json"},
};

/* Only what it brings along runs, and in no frame of another page. */
constexpr std::string_view guards =
    "Content-Security-Policy: default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\n"
    "Cache-Control: no-cache\n";
/* Ours sets text and attributes alone, and the browser holds it to that (trusted types). */
constexpr std::string_view own_guards =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'\n"
    "X-Frame-Options: DENY\n"
    "Referrer-Policy: no-referrer\n"
    "Cross-Origin-Opener-Policy: same-origin\n"
    "Cross-Origin-Resource-Policy: same-origin\n"
    "Cache-Control: no-cache\n";

Answer
file_answer(std::string_view guards, std::string_view name, std::string_view content)
{
    std::string_view media_type = "application/octet-stream";
    for (const Type &type : types)
        if (name.ends_with(type.ending))
            media_type = type.media_type;
    return {200, std::string(guards) + "Content-Type: " + std::string(media_type), std::string(content), false, ""};
}

/* The address is relative, for a proxy may have put another path before it. */
Answer
redirect(std::string_view to)
{
    return {302, "Location: " + std::string(to), "", false, ""};
}

} // namespace

Pages::Pages(const std::string &folder, unsigned duties)
{
    for (const auto &[name, duty] : duty_names)
        if ((duties & (duty | admin)) != 0)
            facts += (facts.empty() ? "\"" : ", \"") + std::string(name) + "\"";
    facts = "{\"duties\": [" + facts + "], \"admin_ui\": " + (folder.empty() ? "false" : "true") + "}";
    if (folder.empty())
        return;
    size_t bytes = 0;
    try {
        const std::filesystem::path root_folder = std::filesystem::canonical(folder);
        for (const auto &entry : std::filesystem::recursive_directory_iterator(root_folder)) {
            if (!entry.is_regular_file())
                continue;
            /* A link goes by its own name, and leads nowhere outside. */
            if (*std::filesystem::relative(entry.path(), root_folder).begin() == "..")
                continue;
            if ((bytes += entry.file_size()) > most_bytes)
                throw std::runtime_error("--ui " + folder +
                                         " holds more than 64 MB: name the folder of what was built");
            std::ifstream file(entry.path(), std::ios::binary);
            files[entry.path().lexically_relative(root_folder).generic_string()] = {
                std::istreambuf_iterator<char>(file), {}};
        }
    } catch (const std::filesystem::filesystem_error &error) {
        throw std::runtime_error("--ui: " + std::string(error.what()));
    }
    if (!files.contains(index_page))
        throw std::runtime_error("--ui " + folder + " has no index.html");
}

std::optional<Answer>
Pages::page(const Request &request) const
{
    std::string_view path = request.path();
    if (request.method != "GET" && request.method != "HEAD")
        return {};
    if (path == "/" || path == "/page")
        return redirect("page/");
    if (path.starts_with(own_root)) {
        std::string_view name = path.substr(own_root.size());
        if (name == "gateway.json")
            return file_answer(own_guards, name, facts);
        const auto file = std::ranges::find(page_files, name.empty() ? index_page : name, &PageFile::name);
        return file != page_files.end() ? std::optional(file_answer(own_guards, file->name, file->content))
                                        : std::nullopt;
    }

    if (files.empty())
        return {};
    if (path == root.substr(0, root.size() - 1))
        return redirect("admin/");
    if (!path.starts_with(root))
        return {};
    /* The browser asks for what a page names beside it, however deep the path of the page is. */
    for (std::string_view name = path.substr(root.size()); !name.empty();) {
        if (auto file = files.find(name); file != files.end())
            return file_answer(guards, file->first, file->second);
        size_t slash = name.find('/');
        name.remove_prefix(slash == name.npos ? name.size() : slash + 1);
    }
    /* A path that the page itself makes sense of. */
    return file_answer(guards, index_page, files.find(index_page)->second);
}

} // namespace gateway
