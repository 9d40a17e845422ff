/*
 * pages.h: user interfaces that run in a browser: the page of our own under /page/, which is built in, and the files of
 * another under /ojs/admin/ (--ui DIR). All of them are read at the start, so that no request reaches the file system.
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
    /* An empty folder: there is no other user interface. Throws std::runtime_error. */
    Pages(const std::string &folder, unsigned duties);

    /* What a request for a page is answered with; nothing for any other request. */
    std::optional<Answer> page(const Request &request) const;

private:
    std::map<std::string, std::string, std::less<>> files; /* of the folder, by path below it */
    std::string facts;                                     /* of this gateway, as JSON, for the page of our own */
};

} // namespace gateway
