// Any text is either a config, from which the activation of a layer is read or refused in printable
// words, or a typed error.

#include "checkpoint/config/assumptions.hpp"
#include "checkpoint/config/layer_activation.hpp"
#include "checkpoint/config/model_config.hpp"
#include "checkpoint/findings/findings.hpp"
#include "checkpoint/json/json.hpp"
#include "moe64/error.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace {

using namespace moe64::checkpoint;

void require(bool holds) {
  if (!holds) std::abort();
}

bool is_printable(std::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

void check_activation(layer_activation const& found) {
  require(found.spec.has_value() == found.refusal.empty());
  require(is_printable(found.refusal));
  if (!found.spec || !moe64::has_limit(found.spec->kind)) return;
  require(found.spec->limit > 0.0F && std::isfinite(found.spec->limit));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  std::string_view const text(reinterpret_cast<char const*>(data), size);
  try {
    auto const document = parse_json(text, "fuzz");
    findings found;
    for (bool const params : {false, true}) {
      config_sources sources;
      (params ? sources.params : sources.config) = &document->root();
      model_config const model = read_model_config(sources, found);
      for (bool const gated : {false, true}) {
        for (bool const mtp : {false, true}) {
          check_activation(activation_of(model, assumptions{}, {1, mtp, gated}));
        }
      }
    }
    for (moe64::finding const& each : found.kept()) require(is_printable(each.text));
  } catch (moe64::error const& refused) {
    require(refused.code() == moe64::errc::malformed_file);
  }
  return 0;
}
