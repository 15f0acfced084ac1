#pragma once

#include "moe64/problem.hpp"

#include <string>
#include <vector>

namespace moe64::cli {

/// The problems that a command names: every LINE, then those of the file ("-" is standard input).
/// An argument that has blanks in it is a line by itself; arguments without blanks are the words of
/// one line, so that quotes may be left out when there is one problem. In a file every line is a
/// problem; # begins a comment. All are parsed before any runs: errc::invalid_argument names the
/// bad one and where it stands.
[[nodiscard]] std::vector<problem> read_problems(std::vector<std::string> const& arguments,
                                                 std::string const& file);

/// to_string, but never empty: a problem of nothing but defaults is "op=layer".
[[nodiscard]] std::string line_of(problem const& p);

}  // namespace moe64::cli
