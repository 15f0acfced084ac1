#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

/// The verbs and options of the tool as data, for what is made from them: shell completion and the
/// manual page.
namespace moe64::cli {

enum class value_kind {
  none,        ///< a flag
  text,        ///< a number, a list, anything that cannot be listed
  words,       ///< one of `words`
  file,        ///< of any kind
  folder,      ///< to write to
  checkpoint,  ///< a folder, or a safetensors file
};

/// An option, or what a verb takes without a name.
struct command_argument {
  std::vector<std::string> names;  ///< "-f", "--file"; empty: it is known by its place
  std::string value;               ///< what --help calls the value: "FILE"; empty: a flag
  value_kind kind = value_kind::none;
  std::vector<std::string> words;  ///< possible values; one that ends in = or : is a beginning
  std::string text;
  bool required = false;
  bool repeats = false;
};

struct command {
  std::string name;
  std::string text;
  std::string footer;  ///< explanations and examples, as --help ends
  std::vector<command_argument> options;
  std::vector<command_argument> places;
};

struct command_tree {
  command tool;
  std::vector<command> verbs;
};

/// errc::internal for a value whose name says nothing here: what it means has to be added.
[[nodiscard]] command_tree tree_of(CLI::App const& app);

}  // namespace moe64::cli
