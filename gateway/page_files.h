/*
 * page_files.h: the files of gateway/page, built in. The Makefile makes the source.
 */
#pragma once

#include <span>
#include <string_view>

namespace gateway
{

struct PageFile {
    std::string_view name, content;
};
extern const std::span<const PageFile> page_files;

} // namespace gateway
