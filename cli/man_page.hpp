#pragma once

#include "command_tree.hpp"

#include <string>
#include <string_view>

namespace moe64::cli {

/// moe64(1) in roff, of what --help says: each verb with its options and explanations; paragraphs
/// that several verbs end with (exit codes, keys of a problem line) once, as sections.
[[nodiscard]] std::string man_page(command_tree const& tree, std::string_view version);

}  // namespace moe64::cli
