#include "core/text.hpp"

#include "moe64/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace moe64 {
namespace {

struct code_range {
  std::uint32_t first, last;
};

/// Characters that are not what they look like: controls, those without a width, those that turn
/// the direction of what follows, separators of lines, variation selectors, and tags.
constexpr code_range hidden[] = {
    {0x00, 0x1f},     {0x7f, 0x9f},     {0xad, 0xad},      {0x34f, 0x34f},   {0x61c, 0x61c},
    {0x115f, 0x1160}, {0x17b4, 0x17b5}, {0x180b, 0x180f},  {0x200b, 0x200f}, {0x2028, 0x202e},
    {0x2060, 0x206f}, {0x2800, 0x2800}, {0x3164, 0x3164},  {0xfe00, 0xfe0f}, {0xfeff, 0xfeff},
    {0xffa0, 0xffa0}, {0xfff9, 0xfffb}, {0xe0000, 0xe0fff}};

std::uint32_t code_point(std::string_view sequence) {
  auto const byte = [&](std::size_t i) { return static_cast<unsigned char>(sequence[i]); };
  if (sequence.size() == 1) return byte(0);
  std::uint32_t code = byte(0) & (0x7fU >> sequence.size());
  for (std::size_t i = 1; i < sequence.size(); ++i) code = code << 6 | (byte(i) & 0x3fU);
  return code;
}

bool is_hidden(std::uint32_t code) {
  return std::any_of(std::begin(hidden), std::end(hidden), [&](code_range const& range) {
    return range.first <= code && code <= range.last;
  });
}

}  // namespace

std::size_t utf8_length(std::string_view text) noexcept {
  auto const byte = [&](std::size_t at) -> unsigned {
    return at < text.size() ? static_cast<unsigned char>(text[at]) : 0U;
  };
  if (text.empty()) return 0;
  unsigned const first = byte(0);
  std::size_t const length = first < 0x80   ? 1
                             : first < 0xc2 ? 0
                             : first < 0xe0 ? 2
                             : first < 0xf0 ? 3
                             : first < 0xf5 ? 4
                                            : 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return 0;
  }
  unsigned const second = byte(1);
  if (first == 0xe0 && second < 0xa0) return 0;   // overlong
  if (first == 0xed && second >= 0xa0) return 0;  // a surrogate
  if (first == 0xf0 && second < 0x90) return 0;   // overlong
  if (first == 0xf4 && second >= 0x90) return 0;  // past U+10FFFF
  return length;
}

void append_printable(std::string& out, std::string_view text, backslashes how) {
  while (!text.empty()) {
    std::size_t const length = utf8_length(text);
    std::string_view const piece = text.substr(0, std::max<std::size_t>(1, length));
    text.remove_prefix(piece.size());
    if (length == 0 || is_hidden(code_point(piece))) {
      for (char const c : piece) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else if (piece == "\\" && how == backslashes::doubled) {
      out += "\\\\";
    } else {
      out += piece;
    }
  }
}

std::string printable(std::string_view text) {
  std::string out;
  append_printable(out, text, backslashes::as_they_are);
  return out;
}

}  // namespace moe64
