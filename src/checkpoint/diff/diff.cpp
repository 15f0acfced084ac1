#include "moe64/diff.hpp"

#include "checkpoint/convert/parallel_work.hpp"
#include "checkpoint/convert/tiles.hpp"
#include "checkpoint/diff/configs.hpp"
#include "checkpoint/diff/units.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_set>

namespace moe64 {
namespace checkpoint {
namespace {

constexpr index_t piece_bytes = index_t{1} << 20;
constexpr index_t turned_piece_bytes = index_t{16} << 20;

struct unit_pair {
  diff_unit const* first = nullptr;
  diff_unit const* second = nullptr;
};

bool same_place(tensor_entry const& a, tensor_entry const& b) {
  return a.name == b.name && a.type == b.type &&
         std::equal(a.shape.begin(), a.shape.end(), b.shape.begin(), b.shape.end());
}

/// Rows of a unit as f32, in memory of its own.
class row_reader {
 public:
  row_reader(folder const& files, conversion_job const& job, index_t rows_at_once)
      : files_(files),
        job_(job),
        needed_(needed(job, rows_at_once)),
        values_(needed_.values),
        scales_(needed_.scales),
        numbers_(((rows_at_once - 1) * job.step + 1) * job.cols * 4) {}

  /// Row `begin` and those behind it; successive rows are row_stride() apart.
  float const* read(index_t begin, index_t end) {
    index_t const rows = (end - begin - 1) * job_.step + 1;
    tensor_view out = tensor_view::contiguous(numbers_.first(rows * job_.cols * 4).data(),
                                              dtype::f32, {rows, job_.cols})
                          .as_stack();
    stored_region const region = region_of(job_, job_.slice, begin, end);
    read_numbers(files_, *job_.matrices, region, values_.first(needed_.values),
                 scales_.first(needed_.scales), job_.transposed ? out.transposed() : out);
    return static_cast<float const*>(out.data);
  }
  [[nodiscard]] index_t row_stride() const { return job_.step * job_.cols; }

 private:
  static region_bytes needed(conversion_job const& job, index_t rows_at_once) {
    region_bytes most;
    for (index_t row = 0; row < job.rows; row += rows_at_once) {
      index_t const end = std::min(job.rows, row + rows_at_once);
      region_bytes const here = bytes_of(*job.matrices, region_of(job, job.slice, row, end));
      most.values = std::max(most.values, here.values);
      most.scales = std::max(most.scales, here.scales);
    }
    return most;
  }

  folder const& files_;
  conversion_job const& job_;
  region_bytes needed_;
  piece_buffer values_;
  piece_buffer scales_;
  piece_buffer numbers_;
};

/// Also counts numbers of another bit pattern: signs of zero and of NaN.
void compare_rows(float const* a, float const* b, index_t count, tensor_difference& into,
                  index_t& other_bits) {
  if (std::memcmp(a, b, static_cast<std::size_t>(count) * sizeof(float)) != 0) ++other_bits;
  for (index_t i = 0; i < count; ++i) {
    double const x = static_cast<double>(a[i]);
    double const y = static_cast<double>(b[i]);
    double const size = std::fabs(x);
    if (size > into.largest && std::isfinite(size)) into.largest = size;
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    ++into.different;
    double const distance = std::fabs(x - y);
    bool const finite = std::isfinite(distance);
    double const apart = finite ? distance : std::numeric_limits<double>::infinity();
    into.max_abs = std::max(into.max_abs, apart);
    into.max_rel = std::max(into.max_rel, finite ? distance / std::max(size, std::fabs(y)) : apart);
  }
}

class comparison {
 public:
  comparison(checkpoint_reader::state const& first, checkpoint_reader::state const& second,
             diff_options const& options, stream where, progress_report const& progress)
      : first_(first),
        second_(second),
        options_(options),
        where_(where),
        a_(units_of(first, options.part)),
        b_(units_of(second, {options.part.layers, {}})),
        progress_(progress, bytes_in(first.files) + bytes_in(second.files)) {}

  diff_report run() {
    std::vector<unit_pair> pairs;
    for (auto const& [key, unit] : a_.units) {
      auto const other = b_.units.find(key);
      pairs.push_back({&unit, other == b_.units.end() ? nullptr : &other->second});
    }
    for (auto const& [key, unit] : b_.units) {
      // what the first has in other files is not known here
      if (!options_.part.shards.empty() || a_.units.contains(key)) continue;
      pairs.push_back({nullptr, &unit});
    }
    std::vector<tensor_difference> found(pairs.size());
    run_tasks(where_, static_cast<index_t>(pairs.size()), [&](index_t i) {
      auto const position = static_cast<std::size_t>(i);
      found[position] = compare(pairs[position]);
    });
    progress_.finish();
    diff_report report = summary(std::move(found));
    report.configs = config_differences(first_.files, second_.files);
    for (config_difference const& entry : report.configs) {
      report.same = report.same && entry.of_storage && !options_.bitwise;
    }
    return report;
  }

 private:
  static index_t bytes_in(folder const& files) {
    index_t bytes = 0;
    for (tensor_entry const& tensor : files.tensors()) bytes += tensor.bytes;
    return bytes;
  }

  tensor_difference compare(unit_pair const& pair) {
    tensor_difference result;
    diff_unit const& any = pair.first != nullptr ? *pair.first : *pair.second;
    result.tensor = any.tensor;
    if (pair.first != nullptr) result.first = pair.first->stored;
    if (pair.second != nullptr) result.second = pair.second->stored;
    if (pair.first == nullptr || pair.second == nullptr) {
      result.state = pair.first == nullptr ? diff_state::only_second : diff_state::only_first;
      result.of_activations = any.of_activations;
      count_bytes(pair);
      return result;
    }
    bool const same_storage = stored_alike(pair);
    if (same_storage && same_bytes(pair)) {
      result.state = diff_state::identical;
    } else if (comparable(*pair.first, *pair.second)) {
      bool const same_bits = compare_numbers(pair, result);
      // |a - b| as a share of the largest |a|; two tensors of zeros are equal
      double const allowed = options_.tolerance * result.largest;
      if (result.different == 0) {
        // one part of a fused stack, of which another part has changed
        result.state = same_storage && same_bits ? diff_state::identical : diff_state::equal;
      } else if (result.max_abs <= allowed) {
        result.state = diff_state::close;
      }
    }
    count_bytes(pair);
    return result;
  }

  static bool comparable(diff_unit const& a, diff_unit const& b) {
    return a.readable && b.readable && a.job.rows == b.job.rows && a.job.cols == b.job.cols;
  }

  void count_bytes(unit_pair const& pair) {
    index_t bytes = 0;
    for (diff_unit const* const unit : {pair.first, pair.second}) {
      if (unit == nullptr) continue;
      // a part of a stack is its share of the tensors
      index_t const whole = unit->job.matrices == nullptr
                                ? 1
                                : unit->job.matrices->count *
                                      (unit->job.matrices->rows * unit->job.matrices->cols) /
                                      std::max<index_t>(1, unit->job.rows * unit->job.cols);
      for (tensor_entry const* const tensor : unit->entries) {
        bytes += tensor->bytes / std::max<index_t>(1, whole);
      }
    }
    progress_.add(bytes);
  }

  /// Every tensor of the unit is there on both sides, with the same name, type and shape.
  static bool stored_alike(unit_pair const& pair) {
    auto const& a = pair.first->entries;
    auto const& b = pair.second->entries;
    return std::equal(
        a.begin(), a.end(), b.begin(), b.end(),
        [](auto const* left, auto const* right) { return same_place(*left, *right); });
  }

  /// Of a stack only the expert's slice is looked at.
  bool same_bytes(unit_pair const& pair) const {
    auto const& a = pair.first->entries;
    auto const& b = pair.second->entries;
    conversion_job const& job = pair.first->job;
    index_t const count = job.matrices == nullptr ? 1 : job.matrices->count;
    for (std::size_t i = 0; i < a.size(); ++i) {
      // one number for the whole stack does not divide into slices
      bool const sliced =
          count > 1 && a[i]->bytes % count == 0 && !a[i]->shape.empty() && a[i]->shape[0] == count;
      index_t const bytes = sliced ? a[i]->bytes / count : a[i]->bytes;
      if (!same_range(*a[i], *b[i], sliced ? job.slice * bytes : 0, bytes)) return false;
    }
    return true;
  }

  bool same_range(tensor_entry const& a, tensor_entry const& b, index_t begin,
                  index_t bytes) const {
    auto const size = static_cast<std::size_t>(std::min(bytes, piece_bytes));
    std::vector<std::byte> left(size);
    std::vector<std::byte> right(size);
    for (index_t at = 0; at < bytes; at += piece_bytes) {
      auto const count = static_cast<std::size_t>(std::min(piece_bytes, bytes - at));
      first_.files.read(a, begin + at, std::span(left).first(count));
      second_.files.read(b, begin + at, std::span(right).first(count));
      if (std::memcmp(left.data(), right.data(), count) != 0) return false;
    }
    return true;
  }

  /// Whether all bits are the same.
  bool compare_numbers(unit_pair const& pair, tensor_difference& into) {
    conversion_job const& a = pair.first->job;
    conversion_job const& b = pair.second->job;
    if (a.rows == 0 || a.cols == 0) return true;
    index_t const wanted = a.transposed || b.transposed ? turned_piece_bytes : piece_bytes;
    index_t rows = std::max<index_t>(1, wanted / (a.cols * 4));
    if (a.transposed || b.transposed) rows = std::max<index_t>(64, rows - rows % 64);
    rows = std::min(rows, a.rows);
    row_reader left(first_.files, a, rows);
    row_reader right(second_.files, b, rows);
    index_t other_bits = 0;
    for (index_t row = 0; row < a.rows; row += rows) {
      index_t const end = std::min(a.rows, row + rows);
      float const* const x = left.read(row, end);
      float const* const y = right.read(row, end);
      for (index_t i = 0; i < end - row; ++i) {
        compare_rows(x + i * left.row_stride(), y + i * right.row_stride(), a.cols, into,
                     other_bits);
      }
    }
    into.numbers = a.rows * a.cols;
    return other_bits == 0;
  }

  diff_report summary(std::vector<tensor_difference> found) const {
    diff_report report;
    for (tensor_difference& entry : found) {
      ++report.counts[static_cast<std::size_t>(entry.state)];
      report.numbers += entry.numbers;
      report.different += entry.different;
      report.max_abs = std::max(report.max_abs, entry.max_abs);
      report.max_rel = std::max(report.max_rel, entry.max_rel);
      bool const stored_alone =
          entry.state == diff_state::equal || entry.state == diff_state::close;
      bool const fine = entry.state == diff_state::identical || entry.of_activations ||
                        (stored_alone && !options_.bitwise);
      report.same = report.same && fine;
      if (entry.state != diff_state::identical) report.tensors.push_back(std::move(entry));
    }
    std::sort(report.tensors.begin(), report.tensors.end(),
              [](auto const& a, auto const& b) { return a.tensor < b.tensor; });
    return report;
  }

  checkpoint_reader::state const& first_;
  checkpoint_reader::state const& second_;
  diff_options const& options_;
  stream where_;
  diff_side a_;
  diff_side b_;
  progress_counter progress_;
};

}  // namespace
}  // namespace checkpoint

std::string_view name(diff_state state) noexcept {
  constexpr std::array<std::string_view, diff_state_count> names = {
      "identical", "equal", "close", "different", "only in A", "only in B"};
  auto const i = static_cast<std::size_t>(state);
  return i < names.size() ? names[i] : "unknown";
}

diff_report diff(checkpoint_reader const& first, checkpoint_reader const& second,
                 diff_options const& options, stream where, progress_report const& progress) {
  checkpoint::require_cpu(where, "diff");
  if (!(options.tolerance >= 0.0)) {
    fail(errc::invalid_argument, "[diff] a tolerance of {}", options.tolerance);
  }
  checkpoint::require_present(options.part, first.internals().files, "diff");
  return checkpoint::comparison(first.internals(), second.internals(), options, where, progress)
      .run();
}

}  // namespace moe64
