#include "checkpoint/naming/name_pattern.hpp"

#include "checkpoint/findings/quoted.hpp"
#include "core/fail.hpp"

#include <cstddef>
#include <utility>

namespace moe64::checkpoint {
namespace {

constexpr index_t max_depth = 32;
constexpr index_t max_count = 64;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

std::size_t code_of(char c) { return static_cast<unsigned char>(c); }
std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

}  // namespace

/// Writes the states of a pattern while it is read: each parse function appends a run of states
/// that is entered at its first and left past its last.
class pattern_compiler {
 public:
  explicit pattern_compiler(std::string_view text) : text_(text) {
    if (text.size() > static_cast<std::size_t>(max_pattern_bytes)) {
      refuse("is longer than 1024 characters");
    }
  }

  name_pattern compile_regex() {
    alternatives(0);
    if (!done()) refuse("has an unmatched ')'");
    append(step::accept);
    return std::move(pattern_);
  }

  name_pattern compile_glob() {
    while (!done()) {
      char const c = take();
      if (c == '*') {
        append(step::split, size() + 1, size() + 3);
        append_set(~character_set());
        append(step::jump, size() - 2);
      } else if (c == '?') {
        append_set(~character_set());
      } else if (c == '[' && text_.find(']', position_ + 1) != std::string_view::npos) {
        character_class('!');
      } else {
        append_set(character_set().set(code_of(c)));
      }
    }
    append(step::at_end);
    append(step::accept);
    return std::move(pattern_);
  }

 private:
  using step = name_pattern::step;
  using state = name_pattern::state;
  using character_set = name_pattern::character_set;

  [[noreturn]] void refuse(std::string_view why) const {
    fail(errc::unsupported, "[name_pattern] pattern {} {}", quoted(text_), why);
  }

  [[nodiscard]] bool done() const { return position_ == text_.size(); }
  [[nodiscard]] char peek() const { return text_[position_]; }
  [[nodiscard]] bool next_is(std::string_view text) const {
    return text_.substr(position_).starts_with(text);
  }
  char take() {
    if (done()) refuse("ends too early");
    return text_[position_++];
  }
  bool take_if(std::string_view text) {
    if (!next_is(text)) return false;
    position_ += text.size();
    return true;
  }

  [[nodiscard]] index_t size() const { return static_cast<index_t>(pattern_.states_.size()); }

  void append(step kind, index_t next = 0, index_t other = 0) {
    if (size() >= max_pattern_states) refuse("is too large");
    pattern_.states_.push_back({kind, next, other});
  }
  void append_set(character_set const& set) {
    append(step::characters, 0, static_cast<index_t>(pattern_.sets_.size()));
    pattern_.sets_.push_back(set);
  }

  /// Make room for one state before `from`; targets inside the moved run move with it.
  void insert_split(index_t from) {
    append(step::accept);
    auto& states = pattern_.states_;
    for (index_t i = size() - 1; i > from; --i) {
      states[at(i)] = states[at(i - 1)];
      shift(states[at(i)], from, 1);
    }
    states[at(from)] = {step::split, from + 1, from + 1};
  }
  static void shift(state& moved, index_t from, index_t by) {
    bool const has_target = moved.kind == step::split || moved.kind == step::jump;
    if (has_target && moved.next >= from) moved.next += by;
    if (moved.kind == step::split && moved.other >= from) moved.other += by;
  }

  void alternatives(index_t depth) {
    if (depth > max_depth) refuse("is nested too deeply");
    std::vector<index_t> ends;
    index_t branch = size();
    sequence(depth);
    while (take_if("|")) {
      insert_split(branch);
      ends.push_back(size());
      append(step::jump);
      pattern_.states_[at(branch)].other = size();
      branch = size();
      sequence(depth);
    }
    for (index_t const end : ends) pattern_.states_[at(end)].next = size();
  }
  /// The split before the branch that just ended continues with the next branch.
  void branch_to(index_t /*begin*/, index_t branch) { pattern_.states_[at(branch)].other = size(); }

  void sequence(index_t depth) {
    while (!done() && peek() != '|' && peek() != ')') {
      index_t const begin = size();
      item(depth);
      repetition(begin);
    }
  }

  void item(index_t depth) {
    char const c = take();
    switch (c) {
      case '(':
        if (take_if("?")) group_head();
        alternatives(depth + 1);
        if (!take_if(")")) refuse("has an unmatched '('");
        return;
      case '[':
        character_class('^');
        return;
      case '.':
        append_set(~character_set());
        return;
      case '^':
        append(step::at_begin);
        return;
      case '$':
        append(step::at_end);
        return;
      case '\\':
        append_set(escape());
        return;
      case '*':
      case '+':
      case '?':
      case '{':
        refuse("repeats nothing");
      default:
        append_set(character_set().set(code_of(c)));
    }
  }

  void group_head() {
    if (take_if(":")) return;
    if (!take_if("P<")) refuse("uses a look-around, a flag or a back reference");
    while (is_word(take())) {
    }
    if (text_[position_ - 1] != '>') refuse("has a malformed group name");
  }

  character_set escape() {
    char const c = take();
    auto const all = [](bool (*accepts)(char), bool wanted) {
      character_set set;
      for (int code = 0; code < 256; ++code) {
        set[static_cast<std::size_t>(code)] = accepts(static_cast<char>(code)) == wanted;
      }
      return set;
    };
    switch (c) {
      case 'd':
        return all(is_digit, true);
      case 'D':
        return all(is_digit, false);
      case 'w':
        return all(is_word, true);
      case 'W':
        return all(is_word, false);
      case 's':
        return all(is_space, true);
      case 'S':
        return all(is_space, false);
      default:
        if (is_word(c) && c != '_') refuse("uses an escape that is not understood");
        return character_set().set(code_of(c));
    }
  }

  void character_class(char negation) {
    character_set set;
    bool const negated = take_if(std::string_view(&negation, 1));
    bool first = true;
    for (;; first = false) {
      char const low = take();
      if (low == ']' && !first) break;
      if (low == '\\' && negation == '^') {
        set |= escape();
        continue;
      }
      char high = low;
      if (next_is("-") && !next_is("-]")) {
        position_ += 1;
        high = take();
      }
      if (code_of(high) < code_of(low) || high == '\\') refuse("has a malformed range");
      for (std::size_t code = code_of(low); code <= code_of(high); ++code) set.set(code);
    }
    append_set(negated ? ~set : set);
  }

  void repetition(index_t begin) {
    if (done()) return;
    if (take_if("*")) {
      repeat(begin, 0, -1);
    } else if (take_if("+")) {
      repeat(begin, 1, -1);
    } else if (take_if("?")) {
      repeat(begin, 0, 1);
    } else if (take_if("{")) {
      index_t const least = number();
      index_t most = least;
      if (take_if(",")) most = next_is("}") ? -1 : number();
      if (!take_if("}")) refuse("has a malformed count");
      if (most >= 0 && most < least) refuse("has a malformed count");
      repeat(begin, least, most);
    } else {
      return;
    }
    take_if("?");  // lazy: the same set of names
    if (!done() && (peek() == '*' || peek() == '+' || peek() == '{'))
      refuse("repeats a repetition");
  }

  index_t number() {
    index_t value = 0;
    bool any = false;
    while (!done() && is_digit(peek())) {
      value = value * 10 + (take() - '0');
      any = true;
      if (value > max_count) refuse("counts further than 64");
    }
    if (!any) refuse("has a malformed count");
    return value;
  }

  /// The run [begin, end) `least` to `most` times; most -1 is without a limit.
  void repeat(index_t begin, index_t least, index_t most) {
    std::vector<state> const once(pattern_.states_.begin() + begin, pattern_.states_.end());
    pattern_.states_.resize(at(begin));
    for (index_t i = 0; i < least; ++i) paste(once, begin);
    if (most < 0) {
      index_t const head = size();
      append(step::split, head + 1, 0);
      paste(once, begin);
      append(step::jump, head);
      pattern_.states_[at(head)].other = size();
      return;
    }
    std::vector<index_t> heads;
    for (index_t i = least; i < most; ++i) {
      heads.push_back(size());
      append(step::split, size() + 1, 0);
      paste(once, begin);
    }
    for (index_t const head : heads) pattern_.states_[at(head)].other = size();
  }
  void paste(std::vector<state> const& run, index_t from) {
    index_t const by = size() - from;
    for (state copy : run) {
      shift(copy, from, by);
      append(copy.kind, copy.next, copy.other);
    }
  }

  std::string_view text_;
  std::size_t position_ = 0;
  name_pattern pattern_;
};

name_pattern name_pattern::regex(std::string_view text) {
  return pattern_compiler(text).compile_regex();
}

name_pattern name_pattern::glob(std::string_view text) {
  return pattern_compiler(text).compile_glob();
}

bool name_pattern::matches(std::string_view name) const {
  std::vector<index_t> active;
  std::vector<index_t> following;
  std::vector<index_t> pending;
  std::vector<std::size_t> seen(states_.size(), 0);  // the position (plus one) of the last visit
  bool accepted = false;
  auto const enter = [&](index_t first, std::size_t position, std::vector<index_t>& into) {
    pending.assign(1, first);
    while (!pending.empty()) {
      index_t const i = pending.back();
      pending.pop_back();
      if (seen[at(i)] == position + 1) continue;
      seen[at(i)] = position + 1;
      state const& here = states_[at(i)];
      if (here.kind == step::characters) into.push_back(i);
      if (here.kind == step::accept) accepted = true;
      if (here.kind == step::jump || here.kind == step::split) pending.push_back(here.next);
      if (here.kind == step::split) pending.push_back(here.other);
      if (here.kind == step::at_begin && position == 0) pending.push_back(i + 1);
      if (here.kind == step::at_end && position == name.size()) pending.push_back(i + 1);
    }
  };
  enter(0, 0, active);
  for (std::size_t position = 0; position < name.size() && !accepted; ++position) {
    following.clear();
    for (index_t const i : active) {
      auto const set = at(states_[at(i)].other);
      if (sets_[set][code_of(name[position])]) enter(i + 1, position + 1, following);
    }
    std::swap(active, following);
    if (active.empty()) break;
  }
  return accepted;
}

}  // namespace moe64::checkpoint
