#include "suggest.hpp"

#include "CLI/CLI.hpp"
#include "fmt/format.h"
#include "fmt/ranges.h"

#include <algorithm>
#include <cstddef>

namespace moe64::cli {
namespace {

/// Letters to insert, remove, replace, or swap with their neighbour.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> steps(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        steps[i][j] = i + j;
        continue;
      }
      std::size_t const other = a[i - 1] == b[j - 1] ? 0 : 1;
      steps[i][j] =
          std::min({steps[i - 1][j] + 1, steps[i][j - 1] + 1, steps[i - 1][j - 1] + other});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        steps[i][j] = std::min(steps[i][j], steps[i - 2][j - 2] + 1);
      }
    }
  }
  return steps[a.size()][b.size()];
}

std::vector<std::string> verbs_of(CLI::App const& app) {
  std::vector<std::string> names;
  for (CLI::App const* const verb : app.get_subcommands([](CLI::App const*) { return true; })) {
    names.push_back(verb->get_name());
  }
  return names;
}

std::vector<std::string> long_options_of(CLI::App const& verb) {
  std::vector<std::string> names;
  for (CLI::Option const* const option : verb.get_options()) {
    for (std::string const& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::string unknown_option(CLI::App const& app, CLI::App const& verb, std::string const& option) {
  std::string const called = &app == &verb ? "moe64" : verb.get_name();
  std::vector<std::string> const names = long_options_of(verb);
  std::string text = fmt::format("{} has no option {}", called, option);
  std::vector<std::string> others;
  for (std::string const& name : verbs_of(app)) {
    if (app.get_subcommand(name)->get_option_no_throw(option) != nullptr) others.push_back(name);
  }
  std::string const meant = did_you_mean(option, names);
  if (!meant.empty()) return text + meant;
  if (!others.empty()) {
    return text + fmt::format(", only {} {}", fmt::join(others, ", "),
                              others.size() == 1 ? "has it" : "have it");
  }
  return text + fmt::format("; it has {}", fmt::join(names, ", "));
}

}  // namespace

std::string nearest(std::string_view word, std::vector<std::string> const& candidates) {
  constexpr std::size_t longest = 64;  // of what anybody can mean
  if (word.size() > longest) return {};
  std::string best;
  std::size_t fewest = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (std::string const& candidate : candidates) {
    std::size_t const steps = distance(word, candidate);
    if (steps >= fewest) continue;
    fewest = steps;
    best = candidate;
  }
  return best;
}

std::string did_you_mean(std::string_view word, std::vector<std::string> const& candidates) {
  std::string const meant = nearest(word, candidates);
  return meant.empty() ? meant : fmt::format("; did you mean {}?", meant);
}

std::string unknown_word(CLI::App const& app, std::vector<std::string> const& words) {
  std::vector<std::string> const verbs = verbs_of(app);
  CLI::App const* verb = &app;
  for (std::string const& word : words) {
    if (word == "--") break;
    if (word.starts_with("--")) {
      std::string const name = word.substr(0, word.find('='));
      if (verb->get_option_no_throw(name) == nullptr) return unknown_option(app, *verb, name);
      if (name == "--help" || name == "--version") return {};
    } else if (word == "-h") {
      return {};
    } else if (verb == &app && !word.starts_with('-')) {
      if (std::find(verbs.begin(), verbs.end(), word) == verbs.end()) {
        std::string const meant = did_you_mean(word, verbs);
        return fmt::format(
            "there is no verb '{}'{}", word,
            meant.empty() ? fmt::format("; there are {}", fmt::join(verbs, ", ")) : meant);
      }
      verb = app.get_subcommand(word);
    }
  }
  if (verb != &app) return {};
  return fmt::format("a verb is missing; there are {}", fmt::join(verbs, ", "));
}

}  // namespace moe64::cli
