#include "checkpoint/synth/values.hpp"

#include "checkpoint/dialect/stack_format.hpp"
#include "checkpoint/load/repack.hpp"
#include "checkpoint/synth/numbers.hpp"
#include "core/fail.hpp"
#include "core/float8.hpp"
#include "moe64/cpu.hpp"
#include "moe64/ops.hpp"

#include <algorithm>
#include <cstring>

namespace moe64::checkpoint {
namespace {

// Deviations of weights: those of initialised models, so that scales come out between 1e-5 and
// 1e-2 in every format.
constexpr float weight_deviation = 0.02F;
constexpr float four_bit_deviation = 0.01F;
constexpr index_t piece_numbers = index_t{1} << 20;

template <class Number>
void put(std::byte* into, Number number) {
  std::memcpy(into, &number, sizeof number);
}

float plain_number(synth_tensor const& tensor, synth_numbers const& numbers, index_t i) {
  switch (tensor.fill) {
    case synth_fill::normal:
      return weight_deviation * numbers.normal(i);
    case synth_fill::ones:
      return 1.0F + 0.02F * numbers.normal(i);
    case synth_fill::positive:
      return 0.02F + 0.002F * numbers.normal(i);
    case synth_fill::extents:
      break;
  }
  return 0.0F;
}

/// One slice of one module: the matrices of one expert.
class slice_writer {
 public:
  slice_writer(synth_plan const& plan, synth_module const& module, std::uint64_t seed)
      : module_(module), format_(module.format), seed_(seed) {
    stack_format const first = part_format(format_, 0);
    values_.resize(static_cast<std::size_t>(value_slice_bytes(first)));
    scales_.resize(static_cast<std::size_t>(scale_slice_bytes(first)));
    if (first.has_global) global_.resize(sizeof(float));
    numbers_.resize(static_cast<std::size_t>(checked_mul(first.rows, first.cols)));
    bool const four_bits = format_.values != value_codec::plain && bits(first.type) == 4;
    deviation_ = four_bits ? four_bit_deviation : weight_deviation;
    index_t const own = plan.fault.module;
    bool const chosen = own >= 0 && &plan.modules[static_cast<std::size_t>(own)] == &module;
    reach_ = reach_of(plan.fault.kind);
    if (own >= 0 && (chosen || is_reached(plan, module))) fault_ = plan.fault.kind;
  }

  void make(index_t slice, bool last) {
    int const parts = format_.fused ? 2 : 1;
    for (int part = 0; part < parts; ++part) {
      stack_format const stack = part_format(format_, part);
      draw(slice, part, stack);
      write(stack);
    }
    if (format_.values == value_codec::int4x8) int4_from_offset(values_);
    bool const every = reach_ != synth_fault_reach::one;
    if (every || last) {
      plant_in_values(fault_, format_, {values_, scales_, global_});
    }
  }

  [[nodiscard]] std::span<std::byte const> values() const { return values_; }
  [[nodiscard]] std::span<std::byte const> scales() const { return scales_; }
  [[nodiscard]] std::span<std::byte const> global() const { return global_; }

 private:
  [[nodiscard]] bool is_reached(synth_plan const& plan, synth_module const& module) const {
    synth_module const& own = plan.modules[static_cast<std::size_t>(plan.fault.module)];
    if (module.format.row == nullptr) return false;
    switch (reach_) {
      case synth_fault_reach::one:
        return false;
      case synth_fault_reach::layer:
        return module.layer == own.layer;
      case synth_fault_reach::projection:
        return is_up(module);
      case synth_fault_reach::all:
        return true;
    }
    return false;
  }

  /// Layers and experts differ a little in size, as trained ones do.
  void draw(index_t slice, int part, stack_format const& stack) {
    auto const expert = static_cast<std::uint64_t>(module_.expert + slice);
    synth_numbers const numbers(seed_, module_.name, 2 * expert + (part == 1 ? 1U : 0U));
    synth_numbers const sizes(seed_, "size of experts", expert);
    bool const shared = format_.stacked && format_.scales == scale_codec::tensor;
    float const factor = shared ? 1.0F : 1.0F + 0.1F * sizes.normal(module_.layer);
    float const deviation = deviation_ * factor;
    index_t const count = checked_mul(stack.rows, stack.cols);
    for (index_t i = 0; i < count; ++i) {
      numbers_[static_cast<std::size_t>(i)] = deviation * numbers.normal(i);
    }
  }

  void write(stack_format const& stack) {
    if (format_.row == nullptr) {
      write_plain(stack);
    } else if (format_.stacked && format_.scales == scale_codec::tensor) {
      write_shared(stack);
    } else if (format_.scales == scale_codec::blk_pow2 && format_.scale_type == file_dtype::f32) {
      write_powers(stack);
    } else {
      quantize_into(stack, scales_.data());
    }
  }

  void quantize_into(stack_format const& stack, std::byte* scales) {
    stack_memory memory;
    memory.values = values_.data();
    memory.scales = scales;
    memory.globals = global_.data();
    memory.experts = 1;
    quantized_view const view = make_view(stack, memory);
    quantize_args args;
    args.x = tensor_view::contiguous(numbers_.data(), dtype::f32, {1, stack.rows, stack.cols},
                                     device::cpu());
    args.layout = view.layout();
    args.values = view.values();
    args.scales = view.scales();
    args.global = view.global();
    quantize(args, cpu_stream());
  }

  template <class Encode>
  void encode(stack_format const& stack, index_t size, Encode const& encoded) {
    placement const& place = stack.values;
    std::size_t i = 0;
    for (index_t row = 0; row < stack.rows; ++row) {
      for (index_t col = 0; col < stack.cols; ++col) {
        index_t const at = place.first + row * place.row_stride + col * place.col_stride;
        put(values_.data() + at * size, encoded(numbers_[i++]));
      }
    }
  }

  void write_plain(stack_format const& stack) {
    encode(stack, 2, [](float number) { return encode_bf16(number); });
  }

  /// One scale for all experts of a stack: the operation knows none, and no expert may saturate.
  void write_shared(stack_format const& stack) {
    float const scale = deviation_ * synth_numbers::largest / 448.0F;
    encode(stack, 1, [&](float number) {
      return static_cast<std::uint8_t>(encode_float<e4m3_format>(number / scale));
    });
    put(scales_.data(), scale);
  }

  /// Powers of two that are stored as F32.
  void write_powers(stack_format stack) {
    std::vector<std::byte> exponents(scales_.size() / sizeof(float));
    stack.scale_type = dtype::e8m0;
    quantize_into(stack, exponents.data());
    for (std::size_t i = 0; i < exponents.size(); ++i) {
      put(scales_.data() + i * sizeof(float),
          decode_e8m0(std::to_integer<std::uint8_t>(exponents[i])));
    }
  }

  synth_module const& module_;
  module_format const& format_;
  std::uint64_t seed_;
  synth_fault_kind fault_ = synth_fault_kind::none;
  synth_fault_reach reach_ = synth_fault_reach::one;
  float deviation_ = weight_deviation;
  std::vector<float> numbers_;
  std::vector<std::byte> values_;
  std::vector<std::byte> scales_;
  std::vector<std::byte> global_;
};

}  // namespace

void write_plain_tensor(synth_plan const& plan, index_t position, std::uint64_t seed,
                        synth_sink const& sink) {
  synth_tensor const& tensor = plan.tensors[static_cast<std::size_t>(position)];
  if (tensor.fill == synth_fill::extents) {
    std::byte bytes[2 * sizeof(std::int32_t)];
    put(bytes, narrow<std::int32_t>(tensor.rows));
    put(bytes + sizeof(std::int32_t), narrow<std::int32_t>(tensor.cols));
    sink(position, bytes);
    return;
  }
  synth_numbers const numbers(seed, tensor.file.name);
  index_t const size = bits(tensor.file.type) / 8;
  index_t count = 1;
  for (index_t const extent : tensor.file.shape) count = checked_mul(count, extent);
  std::vector<std::byte> piece;
  for (index_t begin = 0; begin < count; begin += piece_numbers) {
    index_t const end = std::min(count, begin + piece_numbers);
    piece.resize(static_cast<std::size_t>((end - begin) * size));
    for (index_t i = begin; i < end; ++i) {
      float const number = plain_number(tensor, numbers, i);
      std::byte* const into = piece.data() + (i - begin) * size;
      if (tensor.file.type == file_dtype::f32) {
        put(into, number);
      } else {
        put(into, encode_bf16(number));
      }
    }
    sink(position, piece);
  }
}

void write_module(synth_plan const& plan, index_t position, std::uint64_t seed,
                  synth_sink const& sink) {
  synth_module const& module = plan.modules[static_cast<std::size_t>(position)];
  slice_writer writer(plan, module, seed);
  bool const shared = module.format.stacked && module.format.scales == scale_codec::tensor;
  index_t const slices = module.format.experts;
  for (index_t slice = 0; slice < slices; ++slice) {
    writer.make(slice, slice == slices - 1);
    if (module.values >= 0) sink(module.values, writer.values());
    if (shared && slice != slices - 1) continue;
    for (index_t const tensor : {module.scales, module.second_scales}) {
      if (tensor >= 0) sink(tensor, writer.scales());
    }
    if (module.global >= 0) sink(module.global, writer.global());
  }
}

}  // namespace moe64::checkpoint
