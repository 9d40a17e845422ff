/*
 * options.h: the command line.
 */
#pragma once

#include "server.h"

namespace gateway
{

/* Ends the program with a message if the command line is wrong, and for --help. */
Options read_options(int n, char **words);

} // namespace gateway
