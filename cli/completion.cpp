#include "completion.hpp"

#include "fmt/format.h"
#include "fmt/ranges.h"

#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

namespace moe64::cli {
namespace {

/// `text` with `escape` before each of `special`.
std::string escaped(std::string_view text, std::string_view special,
                    std::string_view escape = "\\") {
  std::string made;
  for (char const c : text) {
    if (special.find(c) != std::string_view::npos) made += escape;
    made += c;
  }
  return made;
}

/// As one word, for bash and zsh.
std::string shell_quoted(std::string_view text) { return "'" + escaped(text, "'", "'\\'") + "'"; }

// --- bash ----------------------------------------------------------------------------------------

constexpr char const* bash_functions = R"(
# A word that goes on, because it ends in = or :, is offered without a blank behind it; of words
# KEY=VALUE the keys come first.
_moe64() {
    local word cur last verb='' option='' ended='' head='' kind='' words='' place=0 i
    local -a line=()
    # bash cuts words at = and :, moe64 does not.
    for ((i = 0; i <= COMP_CWORD; ++i)); do
        word=${COMP_WORDS[i]}
        last=
        ((i > 1)) && last=${COMP_WORDS[i - 1]}
        if ((i > 1)) && [[ $word == [=:] || $last == [=:] ]]; then
            line[${#line[@]} - 1]+=$word
        else
            line+=("$word")
        fi
    done
    cur=${line[${#line[@]} - 1]}
    local kept=$cur # what readline leaves as it is
    [[ ${COMP_WORDS[COMP_CWORD]} == [=:] ]] || kept=${cur%"${COMP_WORDS[COMP_CWORD]}"}

    for ((i = 1; i < ${#line[@]} - 1; ++i)); do
        word=${line[i]}
        if [[ -n $option ]]; then
            option=
        elif [[ -n $ended || $word != -* || $word == - ]]; then
            if [[ -z $verb ]]; then verb=$word; else ((place += 1)); fi
        elif [[ $word == -- ]]; then
            ended=1
        elif [[ $word != *=* ]] && _moe64_value "$verb $word"; then
            option=$word
        fi
    done

    kind=words words=
    if [[ -n $option ]]; then
        _moe64_value "$verb $option"
    elif [[ -z $ended && $cur == --*=* ]]; then
        head=${cur%%=*}=
        _moe64_value "$verb ${cur%%=*}"
    elif [[ -z $ended && $cur == -* ]]; then
        _moe64_options
    elif [[ -z $verb ]]; then
        words=$_moe64_verbs
    elif ! _moe64_value "$verb $place"; then
        _moe64_options
    fi

    COMPREPLY=()
    case $kind in
        file) compopt -o default ;; # readline's own way, which knows about quotes
        folder) compopt -o dirnames ;;
    esac
    cur=${cur#"$head"}
    last=
    local IFS=$' \t\n'
    for word in $words; do
        [[ $cur == *=* || $word != *=?* ]] || word=${word%%=*}=
        [[ $word == "$cur"* && $word != "$last" ]] || continue
        last=$word
        [[ $word == *[=:] ]] && compopt -o nospace
        word=$head$word
        COMPREPLY+=("${word#"$kept"}")
    done
}
complete -F _moe64 moe64
)";

std::string bash_kind(command_argument const& argument) {
  switch (argument.kind) {
    case value_kind::words:
      return fmt::format("kind=words words='{}'", fmt::join(argument.words, " "));
    case value_kind::file:
    case value_kind::checkpoint:
      return "kind=file";
    case value_kind::folder:
      return "kind=folder";
    case value_kind::none:
    case value_kind::text:
      break;
  }
  return "kind=text";
}

/// Arms of a `case`: those with the same commands are one.
class bash_arms {
 public:
  void add(std::string const& pattern, std::string const& commands) {
    for (auto& [patterns, same] : arms_) {
      if (same != commands) continue;
      patterns += " | " + pattern;
      return;
    }
    arms_.emplace_back(pattern, commands);
  }
  [[nodiscard]] std::string text() const {
    std::string made;
    for (auto const& [patterns, commands] : arms_) {
      made += fmt::format("        {}) {} ;;\n", patterns, commands);
    }
    return made;
  }

 private:
  std::vector<std::pair<std::string, std::string>> arms_;
};

std::string names_of(std::vector<command_argument> const& options) {
  std::vector<std::string> names;
  for (command_argument const& option : options) {
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return fmt::format("words='{}'", fmt::join(names, " "));
}

std::string bash(command_tree const& tree) {
  std::vector<std::string> verbs;
  bash_arms options;
  bash_arms values;
  options.add("''", names_of(tree.tool.options));
  for (command const& verb : tree.verbs) {
    verbs.push_back(verb.name);
    options.add(verb.name, names_of(verb.options));
    for (command_argument const& option : verb.options) {
      if (option.kind == value_kind::none) continue;
      for (std::string const& name : option.names) {
        values.add(fmt::format("'{} {}'", verb.name, name), bash_kind(option));
      }
    }
    for (std::size_t i = 0; i < verb.places.size(); ++i) {
      command_argument const& place = verb.places[i];
      values.add(place.repeats ? fmt::format("'{} '[0-9]*", verb.name)
                               : fmt::format("'{} {}'", verb.name, i),
                 bash_kind(place));
    }
  }
  return fmt::format(R"(# Completion for bash, printed by `moe64 completion bash`.

_moe64_verbs='{}'

# The options of $verb.
_moe64_options() {{
    case $verb in
{}    esac
}}

# What can stand for an option of a verb, or at one of its places. Fails where nothing can.
_moe64_value() {{
    case $1 in
{}        *) return 1 ;;
    esac
}}
)",
                     fmt::join(verbs, " "), options.text(), values.text()) +
         bash_functions;
}

// --- zsh -----------------------------------------------------------------------------------------

constexpr char const* zsh_head = R"(#compdef moe64
# Completion for zsh, printed by `moe64 completion zsh`.

# Offers words. One that goes on, because it ends in = or :, gets no blank behind it; of words
# KEY=VALUE the keys come first.
_moe64_words() {
  local word ret=1
  local -aU ended open
  for word; do
    [[ $PREFIX == *=* || $word != *=?* ]] || word=${word%%=*}=
    if [[ $word == *[=:] ]]; then open+=($word); else ended+=($word); fi
  done
  (( $#ended )) && compadd -a ended && ret=0
  (( $#open )) && compadd -S '' -a open && ret=0
  return ret
}

_moe64() {
  local context state state_descr line ret=1
  local -A opt_args
  local -a verbs
)";

constexpr char const* zsh_tail = R"(      esac
      ;;
  esac
  return ret
}

# Loaded from a folder of $fpath, this file is the function; read by `source`, it makes it known.
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  _moe64 "$@"
else
  compdef _moe64 moe64
fi
)";

/// ":MESSAGE:ACTION" of _arguments.
std::string zsh_value(command_argument const& argument) {
  std::string action = " ";
  switch (argument.kind) {
    case value_kind::none:
      return {};
    case value_kind::text:
      break;
    case value_kind::words:
      action = fmt::format("{{_moe64_words {}}}", fmt::join(argument.words, " "));
      break;
    case value_kind::file:
      action = "_files";
      break;
    case value_kind::folder:
      action = "_files -/";
      break;
    case value_kind::checkpoint:
      action = "_files -g \"*.safetensors\"";
      break;
  }
  return fmt::format(":{}:{}", escaped(argument.value, ":\\"), escaped(action, ":"));
}

/// One word for each name of an option.
std::string zsh_option(command_argument const& option) {
  bool const ends = option.names.back() == "--help" || option.names.back() == "--version";
  std::string made;
  for (std::string const& name : option.names) {
    std::string before;
    if (ends) {
      before = "(- : *)";
    } else if (option.repeats) {
      before = "*";
    } else if (option.names.size() > 1) {
      before = fmt::format("({})", fmt::join(option.names, " "));
    }
    bool const equals = option.kind != value_kind::none && name.starts_with("--");
    made +=
        " \\\n            " + shell_quoted(before + name + (equals ? "=" : "") + "[" +
                                           escaped(option.text, ":[]\\") + "]" + zsh_value(option));
  }
  return made;
}

std::string zsh(command_tree const& tree) {
  std::string made = zsh_head;
  made += "  _arguments -C -S";
  for (command_argument const& option : tree.tool.options) made += zsh_option(option);
  made += " \\\n            '1: :->verb' '*:: :->words' && ret=0\n";
  made += "  case $state in\n    verb)\n      verbs=(\n";
  for (command const& verb : tree.verbs) {
    made += "        " + shell_quoted(verb.name + ":" + verb.text) + "\n";
  }
  made += "      )\n      _describe -t verbs verb verbs && ret=0\n      ;;\n";
  made += "    words)\n      case $words[1] in\n";
  for (command const& verb : tree.verbs) {
    made += "        " + verb.name + ")\n          _arguments -S";
    for (command_argument const& option : verb.options) made += zsh_option(option);
    for (std::size_t i = 0; i < verb.places.size(); ++i) {
      command_argument const& place = verb.places[i];
      std::string const where = place.repeats ? "*" : std::to_string(i + 1);
      std::string const optional = place.required || place.repeats ? "" : ":";
      made += " \\\n            " + shell_quoted(where + optional + zsh_value(place));
    }
    made += " && ret=0\n          ;;\n";
  }
  return made + zsh_tail;
}

// --- fish ----------------------------------------------------------------------------------------

constexpr char const* fish_head = R"(# Completion for fish, printed by `moe64 completion fish`.

# Whether the verb is this one; without an argument, whether there is none yet.
function __moe64_verb_is
    for word in (commandline -opc)[2..-1]
        if not string match -q -- '-*' $word
            test "$word" = "$argv[1]"
            return
        end
    end
    test -z "$argv[1]"
end

complete -c moe64 -f
)";

std::string fish_quoted(std::string_view text) { return "'" + escaped(text, "'\\") + "'"; }

/// What `complete` takes for the values; the program of a completion is itself quoted.
std::string fish_value(command_argument const& argument) {
  switch (argument.kind) {
    case value_kind::none:
      return {};
    case value_kind::text:
      return " -x";
    case value_kind::words:
      return fmt::format(" -x -a '{}'", fmt::join(argument.words, " "));
    case value_kind::file:
      return " -r -F";
    case value_kind::folder:
      return " -x -a '(__fish_complete_directories)'";
    case value_kind::checkpoint:
      return " -x -a '(__fish_complete_suffix .safetensors)'";
  }
  return {};
}

std::string fish_lines(command const& verb, std::string const& condition) {
  std::string made;
  for (command_argument const& option : verb.options) {
    std::string names;
    for (std::string const& name : option.names) {
      names += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    }
    made += fmt::format("complete -c moe64 -n {}{}{} -d {}\n", condition, names, fish_value(option),
                        fish_quoted(option.text));
  }
  std::string last;  // fish does not count places: each kind once
  for (command_argument const& place : verb.places) {
    std::string const value = fish_value(place);
    if (value == last) continue;
    made += fmt::format("complete -c moe64 -n {}{}\n", condition, value);
    last = value;
  }
  return made;
}

std::string fish(command_tree const& tree) {
  std::string made = fish_head;
  made += fish_lines(tree.tool, "__moe64_verb_is");
  for (command const& verb : tree.verbs) {
    made += fmt::format("complete -c moe64 -n __moe64_verb_is -a {} -d {}\n", verb.name,
                        fish_quoted(verb.text));
  }
  for (command const& verb : tree.verbs) {
    made += "\n" + fish_lines(verb, fmt::format("'__moe64_verb_is {}'", verb.name));
  }
  return made;
}

}  // namespace

std::string completion(command_tree const& tree, shell of) {
  switch (of) {
    case shell::bash:
      return bash(tree);
    case shell::zsh:
      return zsh(tree);
    case shell::fish:
      return fish(tree);
  }
  return {};
}

}  // namespace moe64::cli
