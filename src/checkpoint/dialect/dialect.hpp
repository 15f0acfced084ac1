#pragma once

#include "checkpoint/config/assumptions.hpp"
#include "checkpoint/config/model_config.hpp"
#include "checkpoint/dialect/table.hpp"
#include "checkpoint/naming/module_inventory.hpp"

#include <deque>
#include <optional>
#include <string>
#include <utility>

namespace moe64::checkpoint {

/// What the choice of a dialect for a module depends on. No shape is among it.
struct dialect_query {
  quant_scheme const* scheme = nullptr;  ///< declared for the module
  key_schema schema = key_schema::mlp_proj;
  bool expert_module = true;
  bool packed = false;
  file_dtype type = file_dtype::f8_e4m3;  ///< of the values
  tensor_part scale = tensor_part::weight_scale;

  friend bool operator==(dialect_query const&, dialect_query const&) = default;
};

/// The chosen row, or why there is none.
struct dialect_choice {
  dialect const* row = nullptr;
  std::string refusal;  ///< a sentence that lists the candidates; empty when there is a row
};

/// Chooses rows of the table for the modules of one checkpoint. Rows that fit and mean the same are
/// told apart by model type; rows that fit and differ in meaning are an ambiguity, which is
/// refused.
class dialect_chooser {
 public:
  dialect_chooser(model_config const& config, assumptions const& assumed)
      : config_(&config), assumed_(&assumed) {}

  /// Remembered per query, of which a checkpoint has few.
  [[nodiscard]] dialect_choice const& choose(dialect_query const& query);

 private:
  [[nodiscard]] dialect_choice find(dialect_query const& query) const;
  [[nodiscard]] std::string mismatch(dialect const& row, dialect_query const& query) const;
  [[nodiscard]] bool declared(dialect const& row, dialect_query const& query) const;
  [[nodiscard]] int rank(dialect const& row) const;

  model_config const* config_;
  assumptions const* assumed_;
  std::deque<std::pair<dialect_query, dialect_choice>> known_;  // references stay valid
};

/// How a stack whose names do not tell lies in memory.
struct stack_orientation {
  bool transposed = false;  ///< [experts, in, out]
  gate_up_layout gate_up = gate_up_layout::concatenated;
};
/// From the model type (and the version of Transformers that wrote it), or from what is assumed;
/// empty, with the reason in `refusal`, when neither tells. Never from a shape.
[[nodiscard]] std::optional<stack_orientation> orientation_of(key_schema schema,
                                                              model_config const& config,
                                                              assumptions const& assumed,
                                                              std::string& refusal);

}  // namespace moe64::checkpoint
