#pragma once

#include "checkpoint/synth/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace moe64::checkpoint {

/// Takes the next bytes of a tensor, by position in the plan.
using synth_sink = std::function<void(index_t tensor, std::span<std::byte const> bytes)>;

/// The numbers of a tensor that is written as it is, in pieces of a few MiB.
void write_plain_tensor(synth_plan const& plan, index_t tensor, std::uint64_t seed,
                        synth_sink const& sink);

/// Random matrices of every slice, quantised, with the fault that the plan has for them.
void write_module(synth_plan const& plan, index_t module, std::uint64_t seed,
                  synth_sink const& sink);

}  // namespace moe64::checkpoint
