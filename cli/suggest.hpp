#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

/// What was probably meant by a word that nothing is called.
namespace moe64::cli {

/// The candidate that is fewest letters away, at most a third of them; empty when there is none.
[[nodiscard]] std::string nearest(std::string_view word,
                                  std::vector<std::string> const& candidates);
/// "; did you mean X?", or nothing.
[[nodiscard]] std::string did_you_mean(std::string_view word,
                                       std::vector<std::string> const& candidates);

/// What is wrong with the words of a command line before any value is looked at: no verb, or a verb
/// or an option that is not there. Empty when nothing is.
[[nodiscard]] std::string unknown_word(CLI::App const& app, std::vector<std::string> const& words);

}  // namespace moe64::cli
