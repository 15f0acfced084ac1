#pragma once

#include <array>
#include <span>
#include <string_view>

namespace moe64::checkpoint {

/// What a checkpoint of a model type must hold beside its routed experts, as text.
///
/// One tensor per line: [condition:]... part name[|name]... where `part` is what people call it
/// (attention, router) and any one of the names will do. `^` stands for what is in front of
/// "layers.", `~` for the prefix of a layer, and a line with it holds for every layer of the
/// backbone that fits the conditions. A name that ends in `*` is any tensor that begins so.
///
/// Conditions: `moe`, `dense` (layers with and without routed experts), `full`, `linear`, `conv`
/// (as layer_types of the config says), `indexer` (layers that choose for themselves what to attend
/// to), `KEY=WORD` and `KEY>0` (the config states it; a key that is absent fits nothing). MTP
/// layers are left out: many tools drop parts of them.
struct architecture {
  std::string_view model_types;  ///< separated by blanks; "params.json" for a model without a type
  std::string_view source;
  std::array<std::string_view, 5> tensors;
};

[[nodiscard]] std::span<architecture const> architecture_table() noexcept;

}  // namespace moe64::checkpoint
