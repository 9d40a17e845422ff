/*
 * pages.cpp: see pages.h.
 */
#include "pages.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace gateway
{

namespace
{

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
    "X-Content-Type-Options: nosniff\n"
    "Content-Security-Policy: default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\n"
    "Cache-Control: no-cache\n";

Answer
file_answer(std::string_view name, const std::string &content)
{
    std::string_view media_type = "application/octet-stream";
    for (const Type &type : types)
        if (name.ends_with(type.ending))
            media_type = type.media_type;
    return {200, std::string(guards) + "Content-Type: " + std::string(media_type), content, false, ""};
}

} // namespace

Pages::Pages(const std::string &folder)
{
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
    if (files.empty() || (request.method != "GET" && request.method != "HEAD"))
        return {};
    if (path == "/" || path == root.substr(0, root.size() - 1))
        return Answer{302, "Location: " + std::string(root), "", false, ""};
    if (!path.starts_with(root))
        return {};
    /* The browser asks for what a page names beside it, however deep the path of the page is. */
    for (std::string_view name = path.substr(root.size()); !name.empty();) {
        if (auto file = files.find(name); file != files.end())
            return file_answer(file->first, file->second);
        size_t slash = name.find('/');
        name.remove_prefix(slash == name.npos ? name.size() : slash + 1);
    }
    return file_answer(index_page, files.find(index_page)->second); /* a path that the page itself makes sense of */
}

} // namespace gateway
