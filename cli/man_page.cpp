#include "man_page.hpp"

#include "fmt/format.h"
#include "fmt/ranges.h"

#include <algorithm>
#include <cctype>

namespace moe64::cli {
namespace {

/// A line of text as roff prints it unchanged.
std::string roff(std::string_view line) {
  std::string made = line.starts_with('.') || line.starts_with('\'') ? "\\&" : "";
  for (char const c : line) {
    switch (c) {
      case '\\':
        made += "\\e";
        break;
      case '-':
        made += "\\-";
        break;
      case '~':
        made += "\\(ti";
        break;
      case '^':
        made += "\\(ha";
        break;
      case '`':
        made += "\\(ga";
        break;
      case '\'':
        made += "\\(aq";
        break;
      case '"':
        made += "\\(dq";
        break;
      default:
        made += c;
    }
  }
  return made;
}

using paragraph = std::vector<std::string>;  // its lines

/// What stands between empty lines.
std::vector<paragraph> paragraphs_of(std::string_view text) {
  std::vector<paragraph> made;
  bool open = false;
  while (!text.empty()) {
    auto const end = std::min(text.find('\n'), text.size());
    std::string_view const line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty()) {
      open = false;
      continue;
    }
    if (!open) made.emplace_back();
    open = true;
    made.back().emplace_back(line);
  }
  return made;
}

/// Lines that are indented are kept as they are, others flow.
std::string roff(paragraph const& lines, std::size_t first = 0) {
  std::string made;
  bool kept = false;
  for (std::size_t i = first; i < lines.size(); ++i) {
    bool const indented = lines[i].starts_with(' ');
    if (indented != kept) made += indented ? ".PP\n.nf\n" : ".fi\n.PP\n";
    kept = indented;
    made += roff(lines[i]) + "\n";
  }
  return made + (kept ? ".fi\n" : "");
}

/// "Exit codes:" as "EXIT CODES", "Keys of a problem line (default first):" without the remark.
std::string section_name(std::string_view heading) {
  std::string name(heading.substr(0, heading.find_first_of("(:")));
  while (name.ends_with(' ')) name.pop_back();
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

std::string usage(command const& verb) {
  std::string made = ".B moe64 " + roff(verb.name) + "\n[\\fIOPTIONS\\fR]";
  for (command_argument const& option : verb.options) {
    if (!option.required) continue;
    made += fmt::format(" \\fB{}\\fR \\fI{}\\fR", roff(option.names.back()), roff(option.value));
  }
  for (command_argument const& place : verb.places) {
    std::string const text =
        fmt::format("\\fI{}\\fR{}", roff(place.value), place.repeats ? "..." : "");
    made += place.required ? " " + text : " [" + text + "]";
  }
  return made + "\n";
}

std::string entries(std::vector<command_argument> const& arguments) {
  std::string made;
  for (command_argument const& argument : arguments) {
    std::vector<std::string> names;
    for (std::string const& name : argument.names) names.push_back("\\fB" + roff(name) + "\\fR");
    made += fmt::format(".TP\n{}", fmt::join(names, ", "));
    if (!argument.value.empty()) {
      made += fmt::format("{}\\fI{}\\fR", names.empty() ? "" : " ", roff(argument.value));
    }
    made += "\n" + roff(argument.text) + "\n";
  }
  return made;
}

}  // namespace

std::string man_page(command_tree const& tree, std::string_view version) {
  std::vector<paragraph> sections = paragraphs_of(tree.tool.footer);
  std::vector<paragraph> seen;
  for (command const& verb : tree.verbs) {
    for (paragraph const& lines : paragraphs_of(verb.footer)) {
      auto const is_in = [&](std::vector<paragraph> const& all) {
        return std::find(all.begin(), all.end(), lines) != all.end();
      };
      if (is_in(seen) && !is_in(sections)) sections.push_back(lines);
      seen.push_back(lines);
    }
  }

  std::string made =
      fmt::format(".TH MOE64 1 \"\" \"moe64 {}\" \"User Commands\"\n", roff(version));
  made +=
      ".SH NAME\nmoe64 \\- expert layers of mixture\\-of\\-experts models from quantised weights\n";
  made += ".SH SYNOPSIS\n.B moe64\n\\fIVERB\\fR [\\fIARGUMENTS\\fR]\n.br\n";
  made += ".B moe64\n\\fIVERB\\fR \\fB\\-\\-help\\fR\n";
  made += ".SH DESCRIPTION\n" + roff(tree.tool.text) + "\n";
  made += ".SH OPTIONS\n" + entries(tree.tool.options);
  made += ".SH VERBS\n";
  for (command const& verb : tree.verbs) {
    made += ".SS " + roff(verb.name) + "\n" + roff(verb.text) + ".\n.PP\n" + usage(verb);
    made += entries(verb.places) + entries(verb.options);
    for (paragraph const& lines : paragraphs_of(verb.footer)) {
      if (std::find(sections.begin(), sections.end(), lines) != sections.end()) continue;
      made += ".PP\n" + roff(lines);
    }
  }
  for (paragraph const& lines : sections) {
    made += fmt::format(".SH \"{}\"\n", roff(section_name(lines.front()))) + roff(lines, 1);
  }
  return made;
}

}  // namespace moe64::cli
