#include "checkpoint/quoted.hpp"

#include <fmt/format.h>

namespace moe64::checkpoint {
namespace {

void append_escaped(std::string& out, std::string_view text) {
  for (char const c : text) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c >= ' ' && c <= '~') {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
}

}  // namespace

std::string escaped(std::string_view text, std::size_t limit) {
  std::string out;
  append_escaped(out, text.substr(0, limit));
  if (text.size() > limit) out += fmt::format("... ({} bytes)", text.size());
  return out;
}

std::string quoted(std::string_view text, std::size_t limit) {
  std::string out = "'";
  append_escaped(out, text.substr(0, limit));
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
  }
  append_escaped(out, path);
  return out;
}

}  // namespace moe64::checkpoint
