"""The bugs that mutation_test.py plants: what is replaced by what, and the tests that must see it.

Each is a mistake that a person could make, most of them ones that were made in other libraries. `old` must be in the
file exactly once (tests/tree/mutation_table_test.py holds us to that), so a change of the code changes the bug with it.
"""

from collections import namedtuple

# suite: the program moe64_<suite>; tests: a filter of GoogleTest, as narrow as time asks for.
Mutant = namedtuple("Mutant", "name file old new suite tests")

VIEW = "src/core/view.hpp"
FLOAT8 = "src/core/float8.hpp"
ROWS = "src/cpu/rows.cpp"
PLAN = "src/cpu/plan.cpp"
GATHER = "src/cpu/gather.cpp"
COMBINE = "src/cpu/combine.cpp"
GEMM = "src/cpu/grouped_gemm.cpp"
QUANTIZE = "src/cpu/quantize.cpp"
ACTIVATE = "src/cpu/activate.cpp"
CHECK = "src/ops/check.cpp"
BACKWARD = "src/layer/backward.cpp"

# ---- sizes and addresses ------------------------------------------------------------------------

SIZES = [
    Mutant("offset_of_31_bits", VIEW,
           "  return i * tensor.stride[0] + j * tensor.stride[1] + k * tensor.stride[2];",
           "  return static_cast<std::int32_t>(i * tensor.stride[0] + j * tensor.stride[1] + k * tensor.stride[2]);",
           "huge", "huge_boundary.*"),
    Mutant("offset_of_32_bits", VIEW,
           "  return i * tensor.stride[0] + j * tensor.stride[1] + k * tensor.stride[2];",
           "  return static_cast<std::uint32_t>(i * tensor.stride[0] + j * tensor.stride[1] + k * tensor.stride[2]);",
           "huge", "huge_boundary.*"),
    Mutant("expert_stride_of_32_bits", VIEW,
           "  return {stack.data, offset_of(stack, i, j), stack.stride[2], stack.type};",
           "  return {stack.data, static_cast<std::uint32_t>(offset_of(stack, i)) + offset_of(stack, 0, j),\n"
           "          stack.stride[2], stack.type};",
           "huge", "huge_stack.e4m3_one_expert*:huge_stack.bf16*"),
    Mutant("view_index_of_32_bits", VIEW,
           "      offset += at[d] * stride[d];",
           "      offset = static_cast<std::uint32_t>(offset + at[d] * stride[d]);",
           "huge", "huge_boundary.*"),
    Mutant("column_offset_of_32_bits", ROWS,
           "        out[i] = number_type::get(row.data, first + i * row.stride);",
           "        out[i] = number_type::get(row.data, first + static_cast<std::uint32_t>(i * row.stride));",
           "huge", "huge_boundary.*"),
    Mutant("gathered_row_of_31_bits", GATHER,
           "  auto* const target = static_cast<Word*>(to.data) + offset_of(to, j);",
           "  auto* const target = static_cast<Word*>(to.data) + static_cast<std::int32_t>(offset_of(to, j));",
           "huge", "huge_movement.gather_of_262145_rows"),
    Mutant("combined_row_of_32_bit_bytes", ROWS,
           "  load_row(row_of(q.values(), expert, row), begin, count, out);\n",
           "  row_view from = row_of(q.values(), expert, row);\n"
           "  from.offset = static_cast<std::uint32_t>(from.offset * bits(from.type) / 8) * 8 / bits(from.type);\n"
           "  load_row(from, begin, count, out);\n",
           "huge", "huge_movement.combine_of_262145_rows"),
    Mutant("slots_of_32_bits", PLAN,
           "    index_t const slot = token * plan.top_k + k;\n    index_t& row",
           "    index_t const slot = static_cast<std::uint32_t>(token * plan.top_k + k) % (1U << 31);\n"
           "    index_t& row",
           "huge", "huge_routing.plan*"),
    Mutant("size_not_checked", "src/core/tensor.cpp",
           "  for (int d = 0; d < rank; ++d) count = checked_mul(count, extent[d]);",
           "  for (int d = 0; d < rank; ++d) count = count * extent[d];",
           "unit", "tensor_view.*"),
    Mutant("workspace_not_aligned", "src/core/arena.cpp",
           "  index_t const begin = align_up(bytes_, workspace_alignment);",
           "  index_t const begin = bytes_;",
           "unit", "arena.*:layer_workspace.*"),
    Mutant("workspace_a_byte_short", "src/layer/workspace.cpp",
           "  static_cast<void>(cut_backward(measure, layer, shape, needs_of(layer, gradients)));\n"
           "  return measure.bytes();",
           "  static_cast<void>(cut_backward(measure, layer, shape, needs_of(layer, gradients)));\n"
           "  return measure.bytes() - 1;",
           "unit", "layer_workspace.*"),
    Mutant("saved_workspace_a_byte_short", "src/layer/workspace.cpp",
           "  static_cast<void>(cut_saved(measure, layer, shape));\n  return measure.bytes();",
           "  static_cast<void>(cut_saved(measure, layer, shape));\n  return measure.bytes() - 1;",
           "unit", "layer_workspace.*"),
]

# ---- number formats -----------------------------------------------------------------------------

FORMATS = [
    Mutant("ties_away_from_zero", FLOAT8,
           "  std::uint32_t const rounded = magnitude + ((1U << (drop - 1)) - 1U) + ((magnitude >> drop) & 1U);",
           "  std::uint32_t const rounded = magnitude + (1U << (drop - 1));",
           "unit", "*codec*"),
    Mutant("no_saturation", FLOAT8,
           "  if (Format.saturates && magnitude >= largest) return sign | Format.top;",
           "  static_cast<void>(largest);",
           "unit", "*codec*"),
    Mutant("bf16_cut_off", FLOAT8,
           "  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);",
           "  return static_cast<std::uint16_t>(bits >> 16);",
           "unit", "*codec*"),
    Mutant("e8m0_rounded_down", FLOAT8,
           "((bits & 0x7fffffU) != 0 ? 1U : 0U)", "0U",
           "unit", "*codec*"),
    Mutant("nibbles_swapped", "src/core/number.hpp",
           "    return (i % 2 == 0 ? byte : byte >> 4) & 0xfU;",
           "    return (i % 2 == 0 ? byte >> 4 : byte) & 0xfU;",
           "unit", "*codec*"),
]

# ---- scales -------------------------------------------------------------------------------------

SCALES = [
    Mutant("reciprocal_scale", ROWS, "out[at - begin] *= scale;", "out[at - begin] /= scale;",
           "unit", "dequantize.*"),
    Mutant("scale_row_and_col_swapped", ROWS,
           "    float const scale = scale_at(q, expert, grid_row, grid_col);",
           "    float const scale = scale_at(q, expert, grid_col, grid_row);",
           "unit", "dequantize.*"),
    Mutant("scales_of_the_first_expert", ROWS,
           "  float const scale = load_number(q.scales(), expert, grid_row, grid_col);",
           "  float const scale = load_number(q.scales(), 0, grid_row, grid_col);",
           "unit", "dequantize.*:*grouped_gemm_format*"),
    Mutant("global_scale_the_wrong_way", ROWS,
           "direction::multiply ? scale * global : scale / global;",
           "direction::multiply ? scale / global : scale * global;",
           "unit", "dequantize.*"),
    Mutant("global_scale_forgotten", ROWS,
           "  if (!q.global().values.present()) return scale;", "  if (true) return scale;",
           "unit", "dequantize.*"),
    Mutant("partial_blocks_left_out", QUANTIZE,
           "  index_t const grid_rows = ceil_div(rows, block_rows);",
           "  index_t const grid_rows = rows / block_rows;",
           "unit", "*quantize*"),
    Mutant("codes_by_reciprocal", QUANTIZE,
           "std::clamp(run[i] / factor, -limit, limit);", "std::clamp(run[i] * (1.0F / factor), -limit, limit);",
           "unit", "*quantize*"),
    Mutant("zero_block_of_scale_zero", QUANTIZE, "  float wanted = 1.0F;", "  float wanted = 0.0F;",
           "unit", "*quantize*"),
    Mutant("nan_block_silently_a_number", QUANTIZE, "        result.finite = false;", "        continue;",
           "unit", "*quantize*"),
    Mutant("codes_without_their_scale", "src/core/quant.cpp",
           "  if (!scales.present() || layout.kind == scale_kind::none) {", "  if (layout.kind == scale_kind::none) {",
           "unit", "quantized_view.*"),
    Mutant("scale_shape_not_checked", "src/core/quant.cpp",
           "    matches = scales.extent[d] == expected[d];", "    matches = scales.extent[d] > 0;",
           "unit", "quantized_view.*"),
    Mutant("weights_not_rounded_to_x", GEMM,
           "    if (!matrix.is_plain()) round_row(p.weights_as, count, out);\n", "",
           "unit", "grouped_gemm.*"),
    Mutant("segments_ignore_weight_blocks", GEMM,
           "next(x_block), next(weight_block)});", "next(x_block)});",
           "unit", "grouped_gemm_codes.*"),
    Mutant("sums_of_codes_not_promoted", GEMM,
           "constexpr index_t promotion = 128;", "constexpr index_t promotion = depth_tile;",
           "unit", "grouped_gemm_codes.*:regression.*"),
]

# ---- routing ------------------------------------------------------------------------------------

ROUTING = [
    Mutant("minus_one_not_skipped", PLAN,
           "  if (id == -1 || id == args.experts_total) return skipped_slot;",
           "  if (id == args.experts_total) return skipped_slot;",
           "unit", "plan.*"),
    Mutant("sentinel_experts_not_skipped", PLAN,
           "  if (id == -1 || id == args.experts_total) return skipped_slot;",
           "  if (id == -1) return skipped_slot;",
           "unit", "plan.*"),
    Mutant("bad_ids_skipped_silently", PLAN,
           "  if (id < 0 || id > args.experts_total) return invalid_slot;",
           "  if (id < 0 || id > args.experts_total) return skipped_slot;",
           "unit", "plan.*"),
    Mutant("capacity_off_by_one", PLAN,
           "begin(expert + 1) >= args.capacity", "begin(expert + 1) > args.capacity",
           "unit", "plan.*"),
    Mutant("sub_range_not_shifted", PLAN,
           "  index_t const local = id - args.first_expert;", "  index_t const local = id;",
           "unit", "plan.*:layer_oracle.a_sub_range*"),
    Mutant("weight_of_an_empty_slot_kept", PLAN,
           "    slot_weight(slot) = 0.0F;\n    if (row < 0) return;\n",
           "    slot_weight(slot) = args.weights.present() ? load_number(args.weights, token, k) : 1.0F;\n"
           "    if (row < 0) return;\n",
           "unit", "plan.*"),
    Mutant("empty_slot_read_by_combine", COMBINE,
           "          index_t const row = slot_to_row(slot);\n          if (row < 0) continue;\n",
           "          index_t const row = std::max<index_t>(slot_to_row(slot), 0);\n",
           "unit", "combine.*"),
    Mutant("combine_in_reverse", COMBINE,
           "          index_t const slot = token * plan.top_k + k;",
           "          index_t const slot = token * plan.top_k + plan.top_k - 1 - k;",
           "unit", "combine.*"),
    Mutant("order_depends_on_threads", COMBINE,
           "          index_t const slot = token * plan.top_k + k;",
           "          index_t const slot = token * plan.top_k + (where.handle ? plan.top_k - 1 - k : k);",
           "property", "threads.*"),
    Mutant("tail_of_columns_left_out", COMBINE,
           "        index_t const count = std::min(run_length, hidden - col);",
           "        index_t const count = std::min(run_length, (hidden - col) / 2 * 2);",
           "unit", "combine.*"),
    Mutant("all_rows_taken_for_live", ROWS,
           "  if (!live_rows.present()) return rows;", "  if (true) return rows;",
           "unit", "*quantize*:activate.*:gather.*"),
    Mutant("bias_of_the_expert_before", COMBINE,
           "(expert_begin(middle) <= row ? low : high)", "(expert_begin(middle) < row ? low : high)",
           "unit", "slot_weight_gradient.*"),
    Mutant("ties_to_the_higher_id", "src/cpu/route.cpp",
           "    return id < other.id;", "    return id > other.id;",
           "unit", "route.*"),
    Mutant("nan_chosen_first", "src/cpu/route.cpp",
           "    if (nan != other_nan) return other_nan;", "    if (nan != other_nan) return nan;",
           "unit", "route.*"),
]

# ---- products, activations and the layer --------------------------------------------------------

LAYER = [
    Mutant("gate_and_up_swapped", GEMM,
           "    quantized_view const& matrix = weights.part(part);",
           "    quantized_view const& matrix = weights.part(weights.parts() - 1 - part);",
           "unit", "layer_oracle.*"),
    Mutant("interleaved_taken_for_halves", "src/core/quant.cpp",
           "  return {fused.every(1, 0, 2), fused.every(1, 1, 2)};",
           "  return {fused.slice(1, 0, half), fused.slice(1, half, 2 * half)};",
           "unit", "split_gate_up.*"),
    Mutant("lanes_not_padded", "src/cpu/tile.cpp",
           "  for (index_t i = count; i < padded; ++i) run[i] = 0.0F;",
           "  for (index_t i = count; i < padded - 1; ++i) run[i] = 0.0F;",
           "unit", "*grouped_gemm_depth*"),
    Mutant("last_row_of_a_tile_left_out", GEMM,
           "    for (index_t row = begin(expert); row < begin(expert + 1); row += row_tile) {",
           "    for (index_t row = begin(expert); row + 1 < begin(expert + 1); row += row_tile) {",
           "unit", "*grouped_gemm_depth*"),
    Mutant("ranges_not_checked", GEMM, "  if (!legal) {", "  if (false) {",
           "unit", "grouped_gemm.ranges*"),
    Mutant("bias_dropped", GEMM,
           "    for (index_t r = 0; r < at.rows; ++r) sum[r][n] += bias;", "    static_cast<void>(bias);",
           "unit", "*grouped_gemm*"),
    Mutant("bias_of_gate_for_up", GEMM,
           "load_number(args.bias[part], at.expert, part_row)", "load_number(args.bias[0], at.expert, part_row)",
           "unit", "*grouped_gemm*"),
    Mutant("low_rank_scaling_dropped", GEMM,
           "sum[r][n] += args.low_rank.scaling * addend[r][n];", "sum[r][n] += addend[r][n];",
           "unit", "*grouped_gemm*"),
    Mutant("low_rank_dropped_in_transpose", GEMM,
           "  if (args.low_rank.u.present()) {", "  if (args.low_rank.u.present() && !args.transpose) {",
           "gradient", "*gemm_gradient*"),
    Mutant("lora_b_gradient_not_scaled", "src/layer/projection.cpp",
           "                        .x = u,\n                        .expert_begin = args.expert_begin,\n"
           "                        .scaling = p.lora.scaling,\n",
           "                        .x = u,\n                        .expert_begin = args.expert_begin,\n",
           "unit", "layer_oracle.lora*"),
    Mutant("wgrad_of_an_empty_expert_kept", GEMM,
           "    if (args.d_weights[part].present()) compute_gradient(args, part, at);",
           "    if (args.d_weights[part].present() && at.rows > 0) compute_gradient(args, part, at);",
           "unit", "grouped_gemm_wgrad.*"),
    Mutant("up_not_raised_by_one", ACTIVATE,
           "gptoss ? bounded + 1.0F : bounded", "bounded",
           "unit", "activate.*"),
    Mutant("gradient_through_a_clamp", ACTIVATE,
           "      if (gate > spec.limit) first.slope = 0.0F;\n", "",
           "unit", "activate_backward.*"),
    Mutant("slot_weight_not_applied", "src/layer/forward.cpp",
           "           .weighted = layer.weight_on == weight_placement::output,",
           "           .weighted = false,",
           "unit", "layer_oracle.*"),
    Mutant("slot_weight_twice_in_backward", BACKWARD,
           "  gather_rows(call.dy, false, b.dy_rows);", "  gather_rows(call.dy, true, b.dy_rows);",
           "unit", "layer_oracle.*"),
    Mutant("slot_weight_missing_in_backward", BACKWARD,
           "                     .weighted_by = on_output ? &rows : nullptr,\n", "",
           "unit", "layer_oracle.*"),
    Mutant("frozen_gradient_given", "src/layer/check.cpp",
           "    if (gradients.weights[part].present() && !p.weights.is_plain()) {", "    if (false) {",
           "unit", "layer_refusal.*"),
]

# ---- the door -----------------------------------------------------------------------------------

DOOR = [
    Mutant("device_not_checked", CHECK, "  if (!(tensor.device == device_)) {", "  if (false) {",
           "unit", "regression.*"),
    Mutant("overlap_not_checked", CHECK,
           "  if (!output.present() || !input.present() || !overlaps(output, input)) return;", "  return;",
           "unit", "*wrong_operands*:layer_refusal.*"),
    Mutant("self_overlap_not_checked", CHECK, "  if (overlaps_itself(tensor)) {", "  if (false) {",
           "unit", "regression.*"),
    Mutant("self_overlap_off_by_one", "src/ops/overlap.cpp",
           "    if (tensor.stride[d] <= reach) return true;", "    if (tensor.stride[d] < reach) return true;",
           "unit", "overlap.*"),
    Mutant("extents_not_checked", CHECK,
           "    matches = matches && (extent == any_extent || tensor.extent[d] == extent);",
           "    matches = matches && (extent == any_extent || tensor.extent[d] >= extent);",
           "unit", "*wrong_operands*:layer_refusal.*"),
    Mutant("null_data_not_checked", CHECK,
           "  if (needed > 0 && tensor.data == nullptr) {", "  if (false) {",
           "unit", "regression.*"),
]

MUTANTS = SIZES + FORMATS + SCALES + ROUTING + LAYER + DOOR
