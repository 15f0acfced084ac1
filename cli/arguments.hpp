#pragma once

#include "moe64/index.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

/// Options whose values are read strictly: a number is decimal, finite and within its type and its
/// bounds, or it is refused in words that name the option, the value and what was expected.
namespace moe64::cli {

struct count_bounds {
  index_t least = 0;
  index_t most = std::numeric_limits<index_t>::max();
};
CLI::Option* add_count(CLI::App* verb, char const* option, index_t* value, count_bounds bounds,
                       char const* description);
CLI::Option* add_seed(CLI::App* verb, std::uint64_t* value, char const* description);

enum class number_kind { above_zero, zero_or_more };
CLI::Option* add_number(CLI::App* verb, char const* option, double* value, number_kind kind,
                        char const* description);

/// "512MiB", "5GB", "1000000".
CLI::Option* add_bytes(CLI::App* verb, char const* option, index_t* bytes, char const* description);

/// The name of a file or folder, which is not empty: nobody means that by "$UNSET".
CLI::Option* add_file(CLI::App* verb, char const* option, std::string* path,
                      char const* description);

/// One of `words`; `take` gets its position.
CLI::Option* add_word(CLI::App* verb, char const* option, std::vector<std::string> const& words,
                      std::function<void(std::size_t)> const& take, char const* description);

}  // namespace moe64::cli
