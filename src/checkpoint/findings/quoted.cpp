#include "checkpoint/findings/quoted.hpp"

#include "core/text.hpp"

#include <fmt/format.h>

namespace moe64::checkpoint {
namespace {

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xc0U) == 0x80U; }

/// The first `limit` bytes, or a little less: no character is cut in two.
std::string_view beginning(std::string_view text, std::size_t limit) {
  if (text.size() <= limit) return text;
  std::size_t end = limit;
  while (end > 0 && limit - end < 3 && is_continuation(text[end])) --end;
  return text.substr(0, is_continuation(text[end]) ? limit : end);
}

void append_escaped(std::string& out, std::string_view text) {
  append_printable(out, text, backslashes::doubled);
}

}  // namespace

std::string escaped(std::string_view text, std::size_t limit) {
  std::string out;
  append_escaped(out, beginning(text, limit));
  if (text.size() > limit) out += fmt::format("... ({} bytes)", text.size());
  return out;
}

std::string quoted(std::string_view text, std::size_t limit) {
  std::string out = "'";
  append_escaped(out, beginning(text, limit));
  out += '\'';
  if (text.size() > limit) out += fmt::format("... ({} bytes)", text.size());
  return out;
}

std::string escaped_path(std::string_view path) {
  constexpr std::size_t limit = 300;
  std::string out;
  if (path.size() > limit) {
    out = "...";
    path.remove_prefix(path.size() - limit);
    for (int i = 0; i < 3 && is_continuation(path.front()); ++i) path.remove_prefix(1);
  }
  append_escaped(out, path);
  return out;
}

}  // namespace moe64::checkpoint
