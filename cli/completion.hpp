#pragma once

#include "command_tree.hpp"

#include <string>

namespace moe64::cli {

enum class shell { bash, zsh, fish };

/// The program with which a shell completes the words of a command line of moe64: verbs, options,
/// and values where they can be listed or are files.
[[nodiscard]] std::string completion(command_tree const& tree, shell of);

}  // namespace moe64::cli
