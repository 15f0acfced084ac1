#include "support/adapter_builder.hpp"

#include "support/random.hpp"

#include <cstring>
#include <functional>

namespace moe64::test {
namespace {

tensor_bytes random_factor(std::string const& name, index_t rows, index_t cols, double size,
                           file_dtype type) {
  random_source const draw(std::hash<std::string>{}(name));
  tensor_bytes result{type, {rows, cols}, {}};
  bool const wide = type == file_dtype::f32;
  result.bytes.resize(static_cast<std::size_t>(rows * cols) * (wide ? 4 : 2));
  for (index_t i = 0; i < rows * cols; ++i) {
    auto const number = static_cast<float>(draw.uniform(i, -size, size));
    std::uint16_t const half = type == file_dtype::f16 ? to_f16(number) : to_bf16(number);
    std::byte* const place = result.bytes.data() + i * (wide ? 4 : 2);
    wide ? std::memcpy(place, &number, 4) : std::memcpy(place, &half, 2);
  }
  return result;
}

}  // namespace

void adapter_builder::add(std::string const& path, index_t rows, index_t in, index_t out,
                          double size, file_dtype type) {
  tensors[name(path, "A")] = random_factor(name(path, "A"), rows, in, size, type);
  tensors[name(path, "B")] = random_factor(name(path, "B"), out, rows, size, type);
}

void adapter_builder::add_experts(std::string const& path, index_t experts, index_t hidden,
                                  index_t inter, bool gated) {
  add(path + ".base_layer", 4 * experts, hidden, gated ? 2 * inter : inter);
  add(path, 4 * experts, inter, hidden);
  members["target_parameters"] = gated ? R"(["experts.gate_up_proj", "experts.down_proj"])"
                                       : R"(["experts.up_proj", "experts.down_proj"])";
}

void adapter_builder::write(temp_folder const& into) const {
  into.write("adapter_model.safetensors", file_of(tensors));
  std::string text = "{";
  for (auto const& [key, value] : members) {
    text += (text.size() == 1 ? "\"" : ", \"") + key + "\": " + value;
  }
  into.write("adapter_config.json", text + "}");
}

double adapter_builder::delta(std::string const& path, index_t o, index_t i, index_t expert,
                              index_t experts, double scaling, bool grouped) const {
  tensor_bytes const& a = tensors.at(name(path, "A"));
  tensor_bytes const& b = tensors.at(name(path, "B"));
  index_t const rank = a.shape[0] / experts;
  double sum = 0;
  for (index_t k = 0; k < rank; ++k) {
    index_t const column = grouped ? expert * rank + k : k * experts + expert;
    sum += static_cast<double>(stored_number(b, o * rank * experts + column)) *
           static_cast<double>(stored_number(a, (expert * rank + k) * a.shape[1] + i));
  }
  return scaling * sum;
}

}  // namespace moe64::test
