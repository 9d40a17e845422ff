/*
 * duties.h: what a gateway is there for: --allow produce,work serves the routes of these duties and no others.
 */
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace gateway
{

enum Duty : unsigned { produce = 1, work = 2, observe = 4, admin = 8 };
inline constexpr std::pair<std::string_view, unsigned> duty_names[] = {
    {"produce", produce}, {"work", work}, {"observe", observe}, {"admin", admin}};

/* "produce,work" and so on. Throws std::runtime_error. */
unsigned read_duties(const std::string &names);

/* Whether a gateway with these duties serves that request. */
bool is_served(unsigned duties, std::string_view method, std::string_view path);

} // namespace gateway
