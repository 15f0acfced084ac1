#pragma once

#include "checkpoint/files/folder.hpp"
#include "moe64/part.hpp"

#include <optional>
#include <string_view>

namespace moe64::checkpoint {

/// The number of the layer that a tensor's name names: the one behind `layers`, `blocks` or `h`.
[[nodiscard]] std::optional<index_t> layer_in_name(std::string_view name) noexcept;

[[nodiscard]] bool includes(checkpoint_part const& part, tensor_entry const& tensor) noexcept;

/// errc::invalid_argument when a file or a layer is asked for that is not there.
void require_present(checkpoint_part const& part, folder const& files, std::string_view operation);

}  // namespace moe64::checkpoint
