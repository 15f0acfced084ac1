// Any text is either the config of an adapter, whose ranks and scalings are finite numbers and
// whose layouts are stated or refused, or a typed error in printable words. The first line is the
// name of a tensor of the adapter.

#include "checkpoint/json/json.hpp"
#include "checkpoint/merge/adapter_config.hpp"
#include "checkpoint/naming/adapter_path.hpp"
#include "moe64/error.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace {

using namespace moe64::checkpoint;

void require(bool holds) {
  if (!holds) std::abort();
}

void require_printable(std::string_view text) {
  require(std::none_of(text.begin(), text.end(),
                       [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }));
}

template <class Function>
void typed_error_at_most(Function const& function) {
  try {
    function();
  } catch (moe64::error const& refused) {
    require_printable(refused.what());
    require(refused.code() == moe64::errc::malformed_file ||
            refused.code() == moe64::errc::unsupported ||
            refused.code() == moe64::errc::invalid_argument);
  }
}

void look_at(adapter_config const& config, std::string_view path) {
  moe64::index_t const rank = config.rank_of(path);
  require(rank >= 1 && rank <= (moe64::index_t{1} << 20));
  require(std::isfinite(config.scaling_of(path)));
  static_cast<void>(config.targets_parameter(path));
  for (auto const asked : {std::optional<factor_layout>(), std::optional(factor_layout::grouped)}) {
    typed_error_at_most(
        [&] { static_cast<void>(layout_of_parameter(config.layout(), path, "qwen3_moe", asked)); });
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  std::string_view const input(reinterpret_cast<char const*>(data), size);
  std::string_view const tensor = input.substr(0, input.find('\n'));
  std::string_view const text = input.substr(std::min(input.size(), tensor.size() + 1));
  auto const key = match_adapter_key(tensor);
  std::string_view const path = key ? std::string_view(key->path) : tensor;
  if (auto const experts = match_experts_path(path)) require(experts->layer >= 0);
  typed_error_at_most([&] {
    json_limits limits;
    limits.non_finite = true;
    auto const document = parse_json(text, "fuzz", limits);
    look_at(adapter_config::read(document->root()), path);
  });
  return 0;
}
