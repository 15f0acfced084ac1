#include "checkpoint/naming/name_rules.hpp"

#include <algorithm>
#include <cstddef>

namespace moe64::checkpoint {
namespace {

/// "Linear", "MoEGate": a word that starts with a capital letter and has no dot.
bool is_class_name(std::string_view entry) {
  return !entry.empty() && entry[0] >= 'A' && entry[0] <= 'Z' &&
         entry.find('.') == std::string_view::npos;
}

/// visit("a.b.c"), visit("a.b"), visit("a") until one of them answers true.
template <class Visitor>
bool any_ancestor(std::string_view module, Visitor const& visit) {
  for (;;) {
    if (visit(module)) return true;
    auto const dot = module.rfind('.');
    if (dot == std::string_view::npos) return false;
    module = module.substr(0, dot);
  }
}

}  // namespace

void name_rules::add(std::string_view entry, rule_style style) {
  ++entries_;
  if (entry.starts_with("re:")) {
    expressions_.push_back(name_pattern::regex(entry.substr(3)));
  } else if (style == rule_style::globs || entry.find('*') != std::string_view::npos) {
    globs_.push_back(name_pattern::glob(entry));
  } else if (style == rule_style::components) {
    components_.emplace(entry);
  } else if (is_class_name(entry)) {
    all_ = all_ || entry == "Linear";
  } else {
    modules_.emplace(entry);
  }
}

bool name_rules::covers(std::string_view module) const {
  if (all_) return true;
  auto const matches = [](auto const& patterns, std::string_view text) {
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](name_pattern const& pattern) { return pattern.matches(text); });
  };
  if (matches(expressions_, module)) return true;
  if (!modules_.empty() || !globs_.empty()) {
    bool const named = any_ancestor(module, [&](std::string_view above) {
      return modules_.contains(above) || matches(globs_, above);
    });
    if (named) return true;
  }
  if (components_.empty()) return false;
  return any_ancestor(module, [&](std::string_view tail) {
    // tail ends where a component ends; drop its components from the front one by one
    for (;;) {
      if (components_.contains(tail)) return true;
      auto const dot = tail.find('.');
      if (dot == std::string_view::npos) return false;
      tail = tail.substr(dot + 1);
    }
  });
}

}  // namespace moe64::checkpoint
