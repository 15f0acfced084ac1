#pragma once

#include "checkpoint/config/quant_declaration.hpp"

namespace moe64::checkpoint {

/// A block as "[rows, cols]", or as "128x128" (compressed-tensors). Errors go to `found`.
void read_block(json_value const& block, quant_scheme& scheme, findings& found);

/// The config_groups of compressed-tensors: schemes and what they target.
void read_compressed_tensors(json_value const& config, quant_declaration& into, findings& found);

/// The quant_algo of ModelOpt, and quantized_layers when the precision is mixed.
void read_modelopt(json_value const& quantization, quant_declaration& into, findings& found);

}  // namespace moe64::checkpoint
