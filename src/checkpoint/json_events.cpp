#include "checkpoint/json_events.hpp"

#include "checkpoint/quoted.hpp"
#include "core/fail.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>

namespace moe64::checkpoint {
namespace {

using nlohmann::json;

/// The events of the parser as json_events, with the depth counted.
class adapter {
 public:
  adapter(std::string_view file, index_t max_depth, json_events& events)
      : file_(file), max_depth_(max_depth), events_(events) {}

  bool null() {
    events_.null();
    return true;
  }
  bool boolean(bool value) {
    events_.boolean(value);
    return true;
  }
  bool number_unsigned(json::number_unsigned_t value) {
    events_.natural(value);
    return true;
  }
  bool number_integer(json::number_integer_t value) {
    // Comes only for a literal with a minus, so that 0 was spelt "-0".
    events_.number(value == 0 ? std::string("-0") : fmt::to_string(value), true);
    return true;
  }
  bool number_float(json::number_float_t /*value*/, std::string const& spelt) {
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
  json_events& events_;
  index_t depth_ = 0;
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
  adapter forward(file, limits.depth, events);
  if (!json::sax_parse(text.begin(), text.end(), &forward)) {
    fail(errc::malformed_file, "[json] {}: is not JSON", file);
  }
}

}  // namespace moe64::checkpoint
