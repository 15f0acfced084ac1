#include "checkpoint/check/findings.hpp"
#include "checkpoint/findings/quoted.hpp"

namespace moe64::checkpoint {
namespace {

/// Numbers beside zeros may happen to be zero themselves: so far the ends of whole rows may be off.
constexpr index_t stray_bytes = 16;
/// Below, that all numbers are one is no wonder.
constexpr index_t least_constant = 1024;

index_t row_bytes(scan_item const& item) {
  if (item.format != nullptr) {
    return storage_of(*item.format).pitch * bits(item.kind, item.format->value_type) / 8;
  }
  index_t const rows = item.values->shape.empty() ? 1 : item.values->shape.front();
  return rows > 0 ? item.value_bytes / rows : 0;
}

/// How zeros lie in the rows of a matrix.
enum class zero_place : std::uint8_t {
  rows,     ///< from the beginning of one row to the end of one
  columns,  ///< one end of one row
  across,   ///< from the middle of one row to the middle of one
};

zero_place place_of(zero_stretch const& zeros, index_t row) {
  index_t const begin = zeros.run_begin;
  index_t const end = begin + zeros.run_bytes;
  index_t const first = ceil_div(begin, row) * row;
  index_t const last = end / row * row;
  bool const at_begin = first - begin <= stray_bytes;
  bool const at_end = end - last <= stray_bytes;
  if (at_begin && at_end && last > first) return zero_place::rows;
  bool const within_one = zeros.run_bytes < row;
  return within_one && (at_begin || at_end) ? zero_place::columns : zero_place::across;
}

/// Whether what is not in the run is mostly zero too: a matrix that died, or was pruned.
bool is_sparse(scan_item const& item, scan_result const& result) {
  constexpr index_t least_taken = 16;
  value_sample const& sample = result.sample;
  auto const within = static_cast<index_t>(static_cast<double>(sample.taken) *
                                           static_cast<double>(result.zeros.run_bytes) /
                                           static_cast<double>(item.value_bytes));
  index_t const outside = sample.taken - within;
  return outside < least_taken || 2 * (sample.zeros - within) > outside;
}

/// Rows and columns of zeros can be meant: padding, neurons that are switched off. What begins and
/// ends in the middle of rows was never written, or was lost.
void judge_zeros(scan_item const& item, scan_result const& result, findings& found) {
  zero_stretch const& zeros = result.zeros;
  index_t const row = row_bytes(item);
  if (zeros.run_bytes == 0 || row == 0) return;
  if (!is_matrix(item) && !is_plain_weight(item)) return;
  std::string_view const tensor = item.values->name;
  index_t const end = zeros.run_begin + zeros.run_bytes;
  // a zero byte of int4 is twice the lowest code, and what packed rows are filled up with
  bool const are_zeros = item.kind != value_kind::int4;
  zero_place const place = place_of(zeros, row);
  if (are_zeros && zeros.run_bytes == item.value_bytes) return;  // all-zero
  if (are_zeros && is_sparse(item, result)) {
    found.warning("mostly-zero", tensor,
                  "{}: {} of {} elements that were looked at are zero, as are its bytes {} to {}",
                  text_of(item), result.sample.zeros, result.sample.taken, zeros.run_begin,
                  end - 1);
    return;
  }
  if (place == zero_place::across) {
    found.error(
        errc::invalid_argument, "zero-hole", tensor,
        "{}: its bytes {} to {} of {} are zero, {} rows of {} bytes{}: not written, or lost",
        text_of(item), zeros.run_begin, end - 1, item.value_bytes,
        fmt::format("{:.1f}", static_cast<double>(zeros.run_bytes) / static_cast<double>(row)), row,
        are_zeros ? "" : " of the lowest code");
    return;
  }
  if (is_matrix(item)) {
    found.warning("zero-rows", tensor, "{}: {} of its {} bytes are zero from byte {} on: {}",
                  text_of(item), zeros.run_bytes, item.value_bytes, zeros.run_begin,
                  place == zero_place::rows ? "whole rows" : "the end of a row");
  } else {
    found.note("zero-rows", tensor, "{}: {} of its {} bytes are zero from byte {} on: {}",
               text_of(item), zeros.run_bytes, item.value_bytes, zeros.run_begin,
               place == zero_place::rows ? "whole rows" : "the end of a row");
  }
}

}  // namespace

void judge_contents(scan_item const& item, scan_result const& result, findings& found) {
  judge_zeros(item, result, found);
  value_sample const& sample = result.sample;
  bool const weights = is_matrix(item) || is_plain_weight(item);
  if (!weights || !sample.constant || sample.taken < least_constant || sample.first == 0.0) return;
  found.warning("constant", item.values->name, "{}: all {} elements that were looked at are {}",
                text_of(item), sample.taken, sample.first);
}

}  // namespace moe64::checkpoint
