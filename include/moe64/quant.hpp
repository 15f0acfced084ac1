#pragma once

#include "moe64/device.hpp"
#include "moe64/export.hpp"
#include "moe64/tensor.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace moe64 {

enum class scale_kind : std::uint8_t { none = 0, tensor = 1, row = 2, block = 3, group = 4 };

/// How many values share one scale. Always stated by the caller, never inferred from a shape.
struct granularity {
  scale_kind kind = scale_kind::none;
  index_t block_rows = 0;  ///< block only
  index_t block_cols = 0;  ///< block and group

  static constexpr granularity none() noexcept { return {}; }
  static constexpr granularity tensor() noexcept { return {scale_kind::tensor, 0, 0}; }
  static constexpr granularity row() noexcept { return {scale_kind::row, 0, 0}; }
  /// Blocks of rows x cols; the last ones may be partial.
  static constexpr granularity block(index_t rows, index_t cols) noexcept {
    return {scale_kind::block, rows, cols};
  }
  /// Runs of `cols` values along a row; the last one may be partial. MX uses 32, NVFP4 16.
  static constexpr granularity group(index_t cols) noexcept { return {scale_kind::group, 0, cols}; }

  /// Rows and columns covered by one scale of a [rows, cols] matrix, at least 1 each: with these
  /// two numbers every granularity is a block, and element (r, c) uses scale (r / rows_per_scale, c
  /// / cols_per_scale).
  [[nodiscard]] constexpr index_t rows_per_scale(index_t rows) const noexcept {
    if (kind == scale_kind::block) return block_rows;
    return kind == scale_kind::tensor && rows > 0 ? rows : 1;
  }
  [[nodiscard]] constexpr index_t cols_per_scale(index_t cols) const noexcept {
    if (kind == scale_kind::block || kind == scale_kind::group) return block_cols;
    return cols > 0 ? cols : 1;
  }
  /// Extents of the scale grid of a [rows, cols] matrix.
  [[nodiscard]] constexpr index_t grid_rows(index_t rows) const noexcept {
    return ceil_div(rows, rows_per_scale(rows));
  }
  [[nodiscard]] constexpr index_t grid_cols(index_t cols) const noexcept {
    return ceil_div(cols, cols_per_scale(cols));
  }

  friend constexpr bool operator==(granularity const&, granularity const&) noexcept = default;
};

/// "none", "tensor", "row", "block:128x128", "group:32"; parse_granularity is its inverse (empty
/// when malformed).
[[nodiscard]] MOE64_API std::string to_string(granularity const& layout);
[[nodiscard]] MOE64_API std::optional<granularity> parse_granularity(std::string_view text);

/// The second-level scale of NVFP4, one per expert. It multiplies (ModelOpt) or divides
/// (compressed-tensors) the block scale: which of the two must be stated.
struct global_scale {
  enum class direction : std::uint8_t { multiply = 0, divide = 1 };
  tensor_view values = {};  ///< [experts] f32
  direction applied = direction::multiply;
};

/// Where the matrices of experts are in a stack that does not hold one for each expert in order:
/// experts that were allocated one by one (place_matrices), a cache of experts, replicas. The first
/// dimension of the stack then counts places, which may be closer together than matrices are long.
/// The tables live on the device of the weights and are part of them. On the CPU an entry that is
/// no place is errc::invalid_argument when the weights are used. On CUDA no host reads the table:
/// there such an entry leads to nothing outside of the stack, and what is computed with that expert
/// is NaN.
struct expert_places {
  tensor_view values = {};  ///< [experts] int64, or absent: that of expert e is number e
  tensor_view scales = {};  ///< the same for the scales

  [[nodiscard]] bool present() const noexcept { return values.present() || scales.present(); }
};

/// Matrices that lie anywhere as one stack: `like` [rows, cols] says what each of them is, its data
/// is not looked at. The stack [places, rows, cols] begins with the lowest matrix and has a place
/// every `step` elements; table[i] = the place of matrix i. Fast GPU kernels ask for steps of
/// whole 16 bytes and at most 2^31 - 1024 places: with steps of 256 bytes matrices may lie 512 GiB
/// apart. errc::invalid_argument when a matrix is null or not at a whole step, errc::size_overflow
/// when the stack does not fit.
[[nodiscard]] MOE64_API tensor_view place_matrices(std::span<void const* const> matrices,
                                                   tensor_view const& like, index_t step,
                                                   std::span<index_t> table);

/// A stack of matrices together with everything that gives its codes meaning. It cannot be made
/// without the scale that its type needs, and every extent is checked when it is made.
///   number(e, r, c) = f32(code) * scale(e, r / rows_per_scale, c / cols_per_scale), the product
///   taken in f32; with a global scale, scale := f32(scale) * global or f32(scale) / global first,
///   rounded to f32.
class MOE64_API quantized_view {
 public:
  quantized_view() = default;  ///< absent

  /// Values that need no scale: [experts, rows, cols] or [rows, cols] f32, bf16 or f16. With places
  /// the first extent is their number, whatever the number of experts.
  [[nodiscard]] static quantized_view plain(tensor_view values, expert_places places = {});

  /// values [experts, rows, cols] or [rows, cols] e4m3, e5m2, int8, int4, fp4; scales [experts,
  /// grid_rows, grid_cols] (or [grid_rows, grid_cols]) f32, bf16, f16, e8m0, e4m3. Throws
  /// errc::missing_scale, errc::shape_mismatch, errc::dtype_mismatch or errc::device_mismatch with
  /// the values. With places the first extents of values and scales are their numbers; a global
  /// scale is [experts] all the same.
  [[nodiscard]] static quantized_view scaled(tensor_view values, tensor_view scales,
                                             granularity layout, global_scale global = {},
                                             expert_places places = {});

  [[nodiscard]] bool present() const noexcept { return values_.present(); }
  [[nodiscard]] bool is_plain() const noexcept { return layout_.kind == scale_kind::none; }
  [[nodiscard]] dtype type() const noexcept { return values_.type; }
  [[nodiscard]] index_t experts() const noexcept {
    return places_.values.present() ? places_.values.extent[0] : values_.extent[0];
  }
  [[nodiscard]] index_t rows() const noexcept { return values_.extent[1]; }
  [[nodiscard]] index_t cols() const noexcept { return values_.extent[2]; }
  /// Always rank 3. Matrix e is that of expert e unless there are places: see values_at.
  [[nodiscard]] tensor_view const& values() const noexcept { return values_; }
  /// Rank 3, or absent when plain.
  [[nodiscard]] tensor_view const& scales() const noexcept { return scales_; }
  [[nodiscard]] expert_places const& places() const noexcept { return places_; }
  /// Which matrix of values() and of scales() belongs to an expert. Reads the tables: for views
  /// of host memory.
  [[nodiscard]] index_t values_at(index_t expert) const noexcept {
    return place_of(places_.values, expert);
  }
  [[nodiscard]] index_t scales_at(index_t expert) const noexcept {
    return place_of(places_.scales, expert);
  }
  [[nodiscard]] global_scale const& global() const noexcept { return global_; }
  [[nodiscard]] granularity const& layout() const noexcept { return layout_; }

  /// visit(name, tensor_view&) for values, scales, global and the tables of places, absent ones
  /// too: for moving the arrays to other memory. Data and device may change, nothing else.
  template <class Visit>
  void for_each_array(Visit const& visit) {
    visit("values", values_);
    visit("scales", scales_);
    visit("global", global_.values);
    visit("places", places_.values);
    visit("scale_places", places_.scales);
  }

 private:
  [[nodiscard]] static index_t place_of(tensor_view const& table, index_t expert) noexcept {
    if (!table.present()) return expert;
    return static_cast<index_t const*>(table.data)[expert * table.stride[0]];
  }

  tensor_view values_;
  tensor_view scales_;
  expert_places places_;
  global_scale global_;
  granularity layout_;
};

/// One tensor for each part of a weight_stack: gate and up, or only the first.
using per_part = std::array<tensor_view, 2>;

/// How gate and up rows of a fused projection lie in memory.
enum class gate_up_layout : std::uint8_t {
  concatenated = 0,  ///< all gate rows, then all up rows
  interleaved = 1,   ///< gate row 0, up row 0, gate row 1, ... (gpt-oss)
};
[[nodiscard]] MOE64_API std::string_view name(gate_up_layout layout) noexcept;

/// Dimension 1 of a fused tensor split into its gate and its up half: weights [experts, 2 * inter,
/// hidden], their row scales or per-half block grids, biases [experts, 2 * inter]. For weights
/// stored [experts, hidden, 2 * inter] take transposed() first. The two views share the memory of
/// `fused`.
[[nodiscard]] MOE64_API per_part split_gate_up(tensor_view const& fused, gate_up_layout layout);

/// The weights of one projection of all experts: one logical matrix per expert, or two (gate and
/// up) that have their own values and their own scale grids, wherever they lie. Row r of the stack
/// is row r of the first part, then of the second: gate rows come before up rows whatever the
/// memory layout.
class MOE64_API weight_stack {
 public:
  weight_stack() = default;  ///< absent
  /// One matrix per expert, [experts, out, in].
  [[nodiscard]] static weight_stack single(quantized_view matrix);
  /// Gate and up, each [experts, inter, in], of one type and granularity.
  [[nodiscard]] static weight_stack gate_up(quantized_view gate, quantized_view up);

  [[nodiscard]] bool present() const noexcept { return parts_ != 0; }
  [[nodiscard]] int parts() const noexcept { return parts_; }
  [[nodiscard]] quantized_view const& part(int i) const noexcept { return part_[i]; }
  [[nodiscard]] index_t experts() const noexcept { return part_[0].experts(); }
  [[nodiscard]] index_t part_rows() const noexcept { return part_[0].rows(); }
  [[nodiscard]] index_t rows() const noexcept { return parts_ * part_[0].rows(); }
  [[nodiscard]] index_t cols() const noexcept { return part_[0].cols(); }
  [[nodiscard]] dtype type() const noexcept { return part_[0].type(); }
  [[nodiscard]] bool is_plain() const noexcept { return part_[0].is_plain(); }
  [[nodiscard]] granularity const& layout() const noexcept { return part_[0].layout(); }
  [[nodiscard]] moe64::device device() const noexcept { return part_[0].values().device; }

  /// visit(quantized_view&) for each part: see quantized_view::for_each_array.
  template <class Visit>
  void for_each_part(Visit const& visit) {
    for (int i = 0; i < parts_; ++i) visit(part_[i]);
  }

 private:
  quantized_view part_[2];
  int parts_ = 0;
};

}  // namespace moe64
