"""Bugs in what `moe64 check` looks for: each makes it miss a fault that tests plant."""

from mutant import Mutant

SIZES_FILE = "src/checkpoint/check/sizes.cpp"
FAULTS = "*every_planted_fault*"

CHECKED = [
    Mutant("sizes_without_scales", "src/checkpoint/scan/scan.cpp",
           "      return scale_number(item.format->scale_type, scales_, scale);", "      return scale < 0 ? -1.0 : 1.0;",
           "unit", FAULTS),
    Mutant("sizes_without_global_scales", "src/checkpoint/check/statistics.cpp",
           "  return result.sample.rms() * global_factor(item, result);", "  return item.values == nullptr ? 0.0 : result.sample.rms();",
           "unit", "*every_healthy_model*"),
    Mutant("layers_not_compared", SIZES_FILE,
           "  if (layers >= least_layers && is_far(size, usual, unusual_size)) {",
           "  if (layers < 0 && is_far(size, usual, unusual_size)) {",
           "unit", FAULTS),
    Mutant("projections_not_compared", SIZES_FILE,
           "  judge_projections(usual, found);\n", "  judge_projections({}, found);\n",
           "unit", FAULTS),
    Mutant("experts_not_compared", SIZES_FILE,
           "    } else if (one.rms > size * unusual_size && size > 0.0) {", "    } else if (false) {",
           "unit", FAULTS),
    Mutant("any_size_is_fine", SIZES_FILE,
           "constexpr double largest_rms = 4.0;", "constexpr double largest_rms = 1e9;",
           "unit", FAULTS),
    Mutant("healthy_layers_alarm", SIZES_FILE,
           "constexpr double unusual_size = 8.0;", "constexpr double unusual_size = 1.2;",
           "unit", "check_healthy.*"),
    Mutant("unit_scales_accepted", "src/checkpoint/check/repetitions.cpp",
           "  if (set.matrices == 0 || set.scales < 2 || set.ones < set.matrices) return;", "  return;",
           "unit", FAULTS),
    Mutant("holes_lost_between_pieces", "src/checkpoint/scan/zero_run.cpp",
           "  take_run(*this, end - trailing, trailing + next.leading);\n", "",
           "unit", "zero_run.*"),
    Mutant("holes_taken_for_rows", "src/checkpoint/check/contents.cpp",
           "  if (at_begin && at_end && last > first) return zero_place::rows;", "  return zero_place::rows;",
           "unit", FAULTS),
    Mutant("missing_tensors_of_single_layers", "src/checkpoint/check/required.cpp",
           "      if (is_there(tensor, layer)) continue;", "      if (layer > 0 || is_there(tensor, layer)) continue;",
           "unit", FAULTS),
]
