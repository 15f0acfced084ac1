#include "checkpoint/json/write.hpp"

#include "checkpoint/findings/quoted.hpp"
#include "checkpoint/safetensors/tensor_name.hpp"
#include "core/fail.hpp"

namespace moe64::checkpoint {

void append_json_text(std::string& out, std::string_view text) {
  if (!is_utf8(text)) {
    fail(errc::invalid_argument, "[json] {} is not UTF-8 and cannot be written", quoted(text));
  }
  out += '"';
  for (char const c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

}  // namespace moe64::checkpoint
