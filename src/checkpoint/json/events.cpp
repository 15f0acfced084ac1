#include "checkpoint/json/events.hpp"

#include "checkpoint/findings/quoted.hpp"
#include "core/fail.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace moe64::checkpoint {
namespace {

using nlohmann::json;

/// NaN, Infinity or -Infinity, and how many literals that are no strings come before it.
struct non_finite_literal {
  std::size_t position = 0;
  std::string_view spelt;
};

/// The events of the parser as json_events, with the depth counted.
class adapter {
 public:
  adapter(std::string_view file, index_t max_depth,
          std::vector<non_finite_literal> const& non_finite, json_events& events)
      : file_(file),
        max_depth_(max_depth),
        next_(non_finite.begin()),
        end_(non_finite.end()),
        events_(events) {}

  bool null() {
    ++literals_;
    events_.null();
    return true;
  }
  bool boolean(bool value) {
    ++literals_;
    events_.boolean(value);
    return true;
  }
  bool number_unsigned(json::number_unsigned_t value) {
    if (next_ != end_ && next_->position == literals_) {
      events_.number((next_++)->spelt, false);
    } else {
      events_.natural(value);
    }
    ++literals_;
    return true;
  }
  bool number_integer(json::number_integer_t value) {
    ++literals_;
    // Comes only for a literal with a minus, so that 0 was spelt "-0".
    events_.number(value == 0 ? std::string("-0") : fmt::to_string(value), true);
    return true;
  }
  bool number_float(json::number_float_t /*value*/, std::string const& spelt) {
    ++literals_;
    std::string text = spelt;
    bool integer = true;
    for (char& c : text) {
      bool const digit = c >= '0' && c <= '9';
      integer = integer && (digit || c == '-');
      // The parser writes the decimal point of the process's locale into its copy.
      if (!digit && c != '-' && c != '+' && c != 'e' && c != 'E') c = '.';
    }
    events_.number(text, integer);
    return true;
  }
  bool string(std::string& value) {
    events_.text(value);
    return true;
  }
  bool binary(json::binary_t& /*value*/) { return false; }
  bool start_object(std::size_t /*count*/) {
    enter();
    events_.begin_object();
    return true;
  }
  bool key(std::string& name) {
    events_.key(name);
    return true;
  }
  bool end_object() {
    --depth_;
    events_.end_object();
    return true;
  }
  bool start_array(std::size_t /*count*/) {
    enter();
    events_.begin_array();
    return true;
  }
  bool end_array() {
    --depth_;
    events_.end_array();
    return true;
  }
  bool parse_error(std::size_t position, std::string const& /*token*/,
                   json::exception const& problem) {
    // "[json.exception...] parse error at line 1, column 5: what is wrong"
    std::string_view reason = problem.what();
    std::size_t const start = reason.find(": ");
    if (start != std::string_view::npos) reason.remove_prefix(start + 2);
    fail(errc::malformed_file, "[json] {}: byte {}: {}", file_, position, escaped(reason, 200));
  }

 private:
  void enter() {
    if (++depth_ > max_depth_) {
      fail(errc::malformed_file, "[json] {}: arrays and objects are nested deeper than {}", file_,
           max_depth_);
    }
  }

  std::string_view file_;
  index_t max_depth_;
  std::vector<non_finite_literal>::const_iterator next_;
  std::vector<non_finite_literal>::const_iterator end_;
  json_events& events_;
  index_t depth_ = 0;
  std::size_t literals_ = 0;
};

bool ends_number(char c) {
  return c == ',' || c == ':' || c == '[' || c == ']' || c == '{' || c == '}' || c == '"' ||
         c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/// The parser copies each literal; one that is too long is refused before it is copied.
void check_literals(std::string_view text, std::string_view file, index_t longest) {
  auto const limit = static_cast<std::size_t>(longest);
  std::size_t begin = 0;  // of the literal, or of what comes before one
  bool inside = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    char const c = text[at];
    if (inside ? c == '"' : ends_number(c)) {
      inside = !inside && c == '"';
      begin = at + 1;
    } else if (at - begin >= limit) {
      fail(errc::malformed_file, "[json] {}: byte {}: a literal is longer than {} bytes", file,
           begin, longest);
    } else if (inside && c == '\\') {
      ++at;
    }
  }
}

/// Puts a 0 where a number that is not finite stands; blanks keep every byte in its place.
std::vector<non_finite_literal> replace_non_finite(std::string_view text, std::string& strict) {
  std::vector<non_finite_literal> found;
  std::size_t literals = 0;
  std::size_t begin = 0;  // of the literal, or of what comes before one
  bool inside = false;
  for (std::size_t at = 0; at <= text.size(); ++at) {
    bool const ends = at == text.size() || (inside ? text[at] == '"' : ends_number(text[at]));
    if (!ends) {
      if (inside && text[at] == '\\') ++at;
      continue;
    }
    std::string_view const literal = text.substr(begin, at - begin);
    if (!inside && !literal.empty()) {
      if (literal == "NaN" || literal == "Infinity" || literal == "-Infinity") {
        found.push_back({literals, literal});
        strict.replace(begin, literal.size(), literal.size(), ' ');
        strict[begin] = '0';
      }
      ++literals;
    }
    inside = at < text.size() && !inside && text[at] == '"';
    begin = at + 1;
  }
  return found;
}

}  // namespace

void read_json(std::string_view text, std::string_view file, json_event_limits const& limits,
               json_events& events) {
  if (text.starts_with("\xef\xbb\xbf")) {
    fail(errc::malformed_file, "[json] {}: starts with a byte order mark", file);
  }
  // The parser takes a NUL for the end of the text, and would not look at what comes after it.
  if (std::size_t const nul = text.find('\0'); nul != std::string_view::npos) {
    fail(errc::malformed_file, "[json] {}: byte {}: is NUL", file, nul);
  }
  check_literals(text, file, limits.literal_bytes);
  std::string strict;
  std::vector<non_finite_literal> non_finite;
  bool const names_one =
      text.find("NaN") != std::string_view::npos || text.find("Infinity") != std::string_view::npos;
  if (limits.non_finite && names_one) {
    strict = text;
    non_finite = replace_non_finite(text, strict);
  }
  std::string_view const read = non_finite.empty() ? text : std::string_view(strict);
  adapter forward(file, limits.depth, non_finite, events);
  if (!json::sax_parse(read.begin(), read.end(), &forward)) {
    fail(errc::malformed_file, "[json] {}: is not JSON", file);
  }
}

}  // namespace moe64::checkpoint
