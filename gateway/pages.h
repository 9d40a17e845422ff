/*
 * pages.h: the files of a user interface that runs in a browser, under /ojs/admin/ (--ui DIR). All of them are read at
 * the start, so that no request reaches the file system.
 */
#pragma once

#include <map>
#include <optional>
#include <string>

#include "database.h"

namespace gateway
{

class Pages {
public:
    /* Empty: there are none. Throws std::runtime_error. */
    explicit Pages(const std::string &folder);

    /* What a request for a page is answered with; nothing for any other request. */
    std::optional<Answer> page(const Request &request) const;

private:
    std::map<std::string, std::string, std::less<>> files; /* by path below the folder */
};

} // namespace gateway
