#pragma once

#include "support/defined_checkpoint.hpp"
#include "support/temp_folder.hpp"

#include <map>
#include <string>

namespace moe64::test {

/// A LoRA adapter in the files of PEFT.
struct adapter_builder {
  tensor_map tensors;
  std::map<std::string, std::string> members = {{"peft_type", "\"LORA\""},
                                                {"r", "4"},
                                                {"lora_alpha", "6"},
                                                {"target_modules", "[\"q_proj\"]"}};

  /// Random factors of a module (the path may end in ".base_layer"): A [rows, in], B [out, rows].
  void add(std::string const& path, index_t rows, index_t in, index_t out, double size = 0.25,
           file_dtype type = file_dtype::f32);
  /// Both parameters of the experts of a layer, of rank 4.
  void add_experts(std::string const& path, index_t experts, index_t hidden, index_t inter,
                   bool gated = true);
  void write(temp_folder const& into) const;

  /// Number (o, i) of scaling * B * A of one expert, summed in order in f64.
  [[nodiscard]] double delta(std::string const& path, index_t o, index_t i, index_t expert = 0,
                             index_t experts = 1, double scaling = 1.5, bool grouped = false) const;
  [[nodiscard]] tensor_bytes& a(std::string const& path) { return tensors.at(name(path, "A")); }
  [[nodiscard]] tensor_bytes& b(std::string const& path) { return tensors.at(name(path, "B")); }

  [[nodiscard]] static std::string name(std::string const& path, char const* which) {
    return "base_model.model." + path + ".lora_" + which + ".weight";
  }
};

}  // namespace moe64::test
