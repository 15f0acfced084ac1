#include "checkpoint/safetensors/tensor_name.hpp"

#include "core/text.hpp"

#include <algorithm>
#include <cstddef>

namespace moe64::checkpoint {
namespace {

bool has_control(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    auto const c = static_cast<unsigned char>(text[i]);
    if (c < 0x20 || c == 0x7f) return true;
    // U+0080 to U+009F are control characters of terminals too; in UTF-8 they start with c2.
    if (c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0) {
      return true;
    }
  }
  return false;
}

bool climbs(std::string_view text) {
  for (std::size_t at = text.find(".."); at != std::string_view::npos;
       at = text.find("..", at + 1)) {
    auto const separates = [](char c) { return c == '/' || c == '\\'; };
    bool const starts = at == 0 || separates(text[at - 1]);
    bool const ends = at + 2 == text.size() || separates(text[at + 2]);
    if (starts && ends) return true;
  }
  return false;
}

}  // namespace

std::string_view tensor_name_problem(std::string_view name) noexcept {
  if (name.size() > longest_tensor_name) return "is longer than 4096 bytes";
  if (has_control(name)) return "has a control character";
  if (name.starts_with('/') || climbs(name)) return "reads as a path outside of the checkpoint";
  return {};
}

std::string_view file_name_problem(std::string_view name) noexcept {
  if (name.empty()) return "is empty";
  if (name.size() > 255) return "is longer than 255 bytes";
  if (has_control(name)) return "has a control character";
  if (name == "." || name == "..") return "is a folder";
  if (name.find_first_of("/\\:") != std::string_view::npos) {
    return "is not a plain file name: it has a separator";
  }
  return {};
}

bool is_ascii(std::string_view text) noexcept {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0; });
}

bool is_utf8(std::string_view text) noexcept {
  while (!text.empty()) {
    std::size_t const length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace moe64::checkpoint
