#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace moe64::test {

/// Eight bytes, little-endian.
inline std::string length_field(std::uint64_t length) {
  std::string field;
  for (int i = 0; i < 8; ++i) field += static_cast<char>(length >> (8 * i) & 0xff);
  return field;
}

/// A file from the text of its header and the bytes after it, right or wrong.
inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  return length_field(header.size()) + std::string(header) + std::string(data);
}

/// `"name":{"dtype":"U8","shape":[...],"data_offsets":[begin,end]}`
inline std::string entry_text(std::string_view name, std::string_view dtype, std::string_view shape,
                              std::string_view offsets) {
  std::string text = "\"";
  text += name;
  text += "\":{\"dtype\":\"";
  text += dtype;
  text += "\",\"shape\":[";
  text += shape;
  text += "],\"data_offsets\":[";
  text += offsets;
  return text + "]}";
}

}  // namespace moe64::test
