#include "checkpoint/scan/scan.hpp"

#include "checkpoint/files/folder.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>

namespace moe64::checkpoint {
namespace {

/// For files that are in memory already any size from 1 MiB on is as fast; storage likes large
/// ones.
constexpr index_t piece_bytes = index_t{2} << 20;

class piece_buffer {
 public:
  [[nodiscard]] std::span<std::byte> first(index_t bytes) {
    return std::span(bytes_.get(), static_cast<std::size_t>(piece_bytes))
        .first(static_cast<std::size_t>(bytes));
  }

 private:
  std::unique_ptr<std::byte[]> bytes_ =
      std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(piece_bytes));
};

/// Buffers that tasks hand on to each other, so that their pages are touched once.
class buffer_stock {
 public:
  [[nodiscard]] std::unique_ptr<piece_buffer> take() {
    std::scoped_lock const lock(mutex_);
    if (free_.empty()) return std::make_unique<piece_buffer>();
    auto buffer = std::move(free_.back());
    free_.pop_back();
    return buffer;
  }
  void give(std::unique_ptr<piece_buffer> buffer) {
    std::scoped_lock const lock(mutex_);
    free_.push_back(std::move(buffer));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<piece_buffer>> free_;
};

bool is_zero_code(value_kind kind, std::byte const* data, index_t i) {
  if (kind == value_kind::fp4 || kind == value_kind::int4) {
    auto const byte = std::to_integer<unsigned>(data[i / 2]);
    unsigned const nibble = i % 2 == 0 ? byte & 15U : byte >> 4U;
    return kind == value_kind::int4 ? nibble == 8 : (nibble & 7U) == 0;
  }
  return (std::to_integer<unsigned>(data[i]) & 0x7fU) == 0;
}

/// Samples the elements of a band and looks for its zero bytes, piece by piece.
class value_look {
 public:
  value_look(scan_item const& item, index_t begin, scan_result& result)
      : item_(item),
        begin_(begin),
        element_bits_(bits(item.kind, item.values->type)),
        step_(sample_step(item.value_bytes * 8 / element_bits_)),
        result_(result) {
    result_.sample.begin = begin;
    result_.zeros.begin = result_.zeros.end = begin;
  }

  /// `scale_of` is asked for the scale of an element; it has none when it only fills a row.
  template <class ScaleOf>
  void at(index_t offset, std::span<std::byte const> piece, ScaleOf const& scale_of) {
    if (item_.kind == value_kind::opaque) return;
    result_.zeros.append(find_zeros(piece, begin_ + offset));
    index_t const from = (begin_ + offset) * 8 / element_bits_;
    index_t const end = from + std::ssize(piece) * 8 / element_bits_;
    for (index_t i = ceil_div(from, step_) * step_; i < end; i += step_) {
      std::optional<double> const scale = scale_of(i);
      if (scale) result_.sample.add(number_at(item_.kind, piece, i - from), *scale);
    }
  }

 private:
  scan_item const& item_;
  index_t begin_;
  index_t element_bits_;
  index_t step_;
  scan_result& result_;
};

class band_scanner {
 public:
  band_scanner(folder const& files, scan_plan const& plan, piece_buffer& buffer,
               progress_counter& progress)
      : files_(files), plan_(plan), buffer_(buffer), progress_(progress) {}

  /// A disk that cannot give some bytes is a finding; a file that changed meanwhile ends the scan.
  scan_result scan_if_readable(scan_band const& band) {
    try {
      return scan(band);
    } catch (error const& e) {
      if (e.code() != errc::io_failure) throw;
      scan_item const& item = plan_.items[static_cast<std::size_t>(band.item)];
      for (tensor_entry const* const tensor : {item.values, item.scales, item.global}) {
        if (tensor != nullptr) files_.check_unchanged(tensor->shard);
      }
      scan_result result;
      result.unreadable.emplace_back(e.what());
      return result;
    }
  }

 private:
  scan_result scan(scan_band const& band) {
    scan_item const& item = plan_.items[static_cast<std::size_t>(band.item)];
    scan_result result;
    if (item.role == scan_role::weight_shape) return read_stated(item);
    if (item.role == scan_role::activation_scale) {
      scale_scanner scanner(item.values->type, false,
                            item.value_bytes * 8 / bits(item.values->type));
      each_piece(*item.values, band.begin, band.end,
                 [&](index_t, auto piece) { scanner.add(piece); });
      result.scales = scanner.counts();
      return result;
    }
    if (item.scales == nullptr) {
      value_look look(item, band.begin, result);
      each_piece(*item.values, item.value_begin + band.begin, item.value_begin + band.end,
                 [&](index_t offset, auto piece) {
                   result.values.add(count_values(item.kind, item.values->type, piece));
                   look.at(offset, piece, [](index_t) { return std::optional(1.0); });
                 });
      return result;
    }
    scan_matrix(item, band, result);
    return result;
  }

  /// use(offset from begin, bytes) of the bytes [begin, end) of a tensor.
  template <class Use>
  void each_piece(tensor_entry const& tensor, index_t begin, index_t end, Use const& use) {
    for (index_t at = begin; at < end; at += piece_bytes) {
      std::span<std::byte> const piece = buffer_.first(std::min(piece_bytes, end - at));
      files_.read(tensor, at, piece);
      use(at - begin, std::span<std::byte const>(piece));
      progress_.add(static_cast<index_t>(piece.size()));
    }
  }

  void scan_matrix(scan_item const& item, scan_band const& band, scan_result& result) {
    storage_grid const grid = storage_of(*item.format);
    index_t const scale_cols = grid.cols.count();
    index_t const scale_bytes = bits(item.format->scale_type) / 8;
    scale_scanner scanner(item.format->scale_type, item.format->scales == scale_codec::blk_pow2,
                          (band.end - band.begin) * scale_cols);
    shared_scales const* const shared =
        item.shared < 0 ? nullptr : &plan_.shared[static_cast<std::size_t>(item.shared)];
    scales_.clear();
    auto const take = [&](std::span<std::byte const> piece) {
      scanner.add(piece);
      scales_.insert(scales_.end(), piece.begin(), piece.end());
    };
    if (shared != nullptr && shared->has_scale) {
      take(std::span(shared->scale).first(static_cast<std::size_t>(scale_bytes)));
    } else {
      each_piece(*item.scales, item.scale_begin + band.begin * scale_cols * scale_bytes,
                 item.scale_begin + band.end * scale_cols * scale_bytes,
                 [&](index_t, auto piece) { take(piece); });
    }
    result.scales = scanner.counts();
    if (double const median = scanner.median(); median > 0.0) result.medians.push_back(median);
    if (item.global != nullptr && band.begin == 0) result.global = read_global(item, shared);

    index_t const element_bits = bits(item.kind, item.format->value_type);
    index_t const first = grid.rows.begin(band.begin) * grid.pitch;
    index_t const last = grid.rows.begin(band.end) * grid.pitch;
    zero_blocks zeros{scanner, grid, band, {}, 0};
    auto const scale_of = [&](index_t element) -> std::optional<double> {
      index_t const row = element / grid.pitch;
      index_t const col = element % grid.pitch;
      if (col >= grid.cols.extent) return std::nullopt;
      index_t const scale = (grid.rows.at(row) - band.begin) * scale_cols + grid.cols.at(col);
      return scale_number(item.format->scale_type, scales_, scale);
    };
    value_look look(item, first * element_bits / 8, result);
    each_piece(*item.values, item.value_begin + first * element_bits / 8,
               item.value_begin + last * element_bits / 8, [&](index_t offset, auto piece) {
                 index_t const from = first + offset * 8 / element_bits;
                 result.values.add(count_codes(item, grid, from, piece));
                 if (result.scales.zero > 0) zeros.look(item.kind, element_bits, from, piece);
                 look.at(offset, piece, scale_of);
               });
    result.wrong_zeros = zeros.wrong;
  }

  /// Rows whose last word is partial are counted nibble by nibble.
  static value_counts count_codes(scan_item const& item, storage_grid const& grid, index_t from,
                                  std::span<std::byte const> piece) {
    if (grid.pitch == grid.cols.extent) {
      return count_values(item.kind, item.format->value_type, piece);
    }
    value_counts counts;
    for (std::size_t i = 0; i < 2 * piece.size(); ++i) {
      if ((from + static_cast<index_t>(i)) % grid.pitch >= grid.cols.extent) continue;
      auto const byte = std::to_integer<unsigned>(piece[i / 2]);
      counts.add(count_nibble(item.kind, i % 2 == 0 ? byte & 15U : byte >> 4U));
    }
    return counts;
  }

  /// Scales that are zero, held against the codes of their blocks.
  struct zero_blocks {
    scale_scanner const& scanner;
    storage_grid const& grid;
    scan_band const& band;
    std::vector<bool> found;
    index_t wrong;

    void look(value_kind kind, index_t element_bits, index_t from,
              std::span<std::byte const> piece) {
      if (found.empty()) {
        found.resize(static_cast<std::size_t>((band.end - band.begin) * grid.cols.count()));
      }
      index_t const end = from + std::ssize(piece) * 8 / element_bits;
      for (index_t at = from; at < end;) {
        index_t const row = at / grid.pitch;
        index_t const col = at % grid.pitch;
        if (col >= grid.cols.extent) {
          at += grid.pitch - col;
          continue;
        }
        index_t const count = std::min(grid.cols.end_at(col) - col, end - at);
        index_t const scale =
            (grid.rows.at(row) - band.begin) * grid.cols.count() + grid.cols.at(col);
        if (scanner.is_zero(scale) && !found[static_cast<std::size_t>(scale)]) {
          for (index_t i = at; i < at + count; ++i) {
            if (is_zero_code(kind, piece.data(), i - from)) continue;
            found[static_cast<std::size_t>(scale)] = true;
            ++wrong;
            break;
          }
        }
        at += count;
      }
    }
  };

  [[nodiscard]] double read_global(scan_item const& item, shared_scales const* shared) {
    std::array<std::byte, 4> bytes = {};
    if (shared != nullptr) {
      bytes = shared->global;
    } else {
      files_.read(*item.global, 0, bytes);
      progress_.add(std::ssize(bytes));
    }
    return static_cast<double>(std::bit_cast<float>(bytes));
  }

  [[nodiscard]] scan_result read_stated(scan_item const& item) {
    scan_result result;
    std::array<index_t, 2> stated = {};
    bool const wide = item.values->type == file_dtype::i64;
    bool const narrow = item.values->type == file_dtype::i32;
    index_t const size = wide ? 8 : 4;
    each_piece(*item.values, 0, item.value_bytes, [&](index_t, auto piece) {
      if (!(wide || narrow) || std::ssize(piece) != 2 * size) return;
      for (std::size_t i = 0; i < 2; ++i) {
        std::int32_t small = 0;
        std::memcpy(&small, piece.data() + i * 4, sizeof small);
        stated[i] = small;
        if (wide) std::memcpy(&stated[i], piece.data() + i * 8, sizeof(index_t));
      }
      result.stated = stated;
    });
    return result;
  }

  folder const& files_;
  scan_plan const& plan_;
  piece_buffer& buffer_;
  progress_counter& progress_;
  std::vector<std::byte> scales_;  // of the band
};

void merge(scan_result& into, scan_result&& part) {
  into.values.add(part.values);
  into.scales.add(part.scales);
  into.medians.insert(into.medians.end(), part.medians.begin(), part.medians.end());
  into.wrong_zeros += part.wrong_zeros;
  if (part.global) into.global = part.global;
  if (part.stated) into.stated = part.stated;
}

/// What depends on the order of bands, kept by band until all are there.
struct band_look {
  value_sample sample;
  zero_stretch zeros;
  std::string unreadable;
};
using band_looks = std::vector<band_look>;

/// Bands are in the order of the files, and those of an item in its own.
void fold_looks(scan_plan const& plan, band_looks const& looks, std::vector<scan_result>& results) {
  for (std::size_t i = 0; i < looks.size(); ++i) {
    scan_result& result = results[static_cast<std::size_t>(plan.bands[i].item)];
    if (!looks[i].unreadable.empty()) {
      result.unreadable.push_back(looks[i].unreadable);
      result.zeros.trailing = 0;  // no run goes on behind a gap
      continue;
    }
    result.sample.append(looks[i].sample);
    result.zeros.append(looks[i].zeros);
  }
}

/// One scale of a whole stack is judged with the first expert: it is wrong when it is for any.
void fold_shared(scan_plan const& plan, std::vector<scan_result>& results) {
  std::size_t first = 0;
  for (std::size_t i = 0; i < results.size(); ++i) {
    scan_item const& item = plan.items[i];
    if (item.shared < 0 || item.format->scales != scale_codec::tensor) continue;
    if (item.value_begin == 0) first = i;
    results[first].wrong_zeros = std::max(results[first].wrong_zeros, results[i].wrong_zeros);
  }
}

}  // namespace

double scan_result::median_scale() const {
  if (medians.empty()) return 0.0;
  std::vector<double> sorted = medians;
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

std::vector<scan_result> run_scan(folder const& files, scan_plan const& plan, stream where,
                                  progress_counter& progress) {
  std::vector<scan_result> results(plan.items.size());
  band_looks looks(plan.bands.size());
  std::mutex mutex;  // bands of one item run at the same time
  buffer_stock stock;
  progress.add(plan.read_bytes);
  run_tasks(where, std::ssize(plan.tasks) - 1, [&](index_t task) {
    auto const number = static_cast<std::size_t>(task);
    std::unique_ptr<piece_buffer> buffer = stock.take();
    band_scanner scanner(files, plan, *buffer, progress);
    for (index_t i = plan.tasks[number]; i < plan.tasks[number + 1]; ++i) {
      scan_band const& band = plan.bands[static_cast<std::size_t>(i)];
      scan_result part = scanner.scan_if_readable(band);
      band_look& look = looks[static_cast<std::size_t>(i)];
      look = {part.sample, part.zeros, {}};
      if (!part.unreadable.empty()) look.unreadable = std::move(part.unreadable.front());
      std::scoped_lock const lock(mutex);
      merge(results[static_cast<std::size_t>(band.item)], std::move(part));
    }
    stock.give(std::move(buffer));
  });
  fold_shared(plan, results);
  fold_looks(plan, looks, results);
  for (index_t shard = 0; shard < std::ssize(files.shards()); ++shard) files.check_unchanged(shard);
  return results;
}

}  // namespace moe64::checkpoint
