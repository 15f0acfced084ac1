// Few rows of an expert by all its weights: the weights are then all that costs time, so they are
// dequantised in registers and never stored. The order of additions is that of bf16/dot.hpp.

#include "cpu/gemm/bf16/dot.hpp"
#include "cpu/gemm/bf16/grouped_gemm_bf16.hpp"
#include "cpu/gemm/bf16/weights.hpp"
#include "cpu/gemm/epilogue.hpp"
#include "cpu/runtime/parallel.hpp"

#include <limits>

namespace moe64::cpu::bf16 {

MOE64_BEGIN_AVX512_BF16

namespace {

/// Four rows of codes that lie far apart are read side by side: one stream of the memory prefetcher
/// each, which adjacent rows would not be. Long streams are better, but many threads need many
/// tasks.
constexpr std::size_t streams = 4;
constexpr index_t longest_stream = 64;
constexpr index_t shortest_stream = 16;
constexpr index_t most_outs = index_t{streams} * longest_stream;
constexpr float unmade = std::numeric_limits<float>::quiet_NaN();

/// One row of weights of each stream, with what their codes mean: a table, or a scale, for every
/// `columns` columns.
struct stream_codes {
  std::uint8_t const* codes[streams];
  float8_table const* tables[streams];
  float const* scales[streams];
  index_t columns;
};

/// lanes(r, s) += `count` columns of x rows, from `k` on, times numbers of stream s: the first 32
/// at `numbers[0]`.
template <std::size_t Rows, std::size_t Steps, class Stream>
[[gnu::always_inline]] inline void add_step(dot_lanes& lanes, row_panel x, Stream s, index_t k,
                                            index_t count, __m512i const (&numbers)[Steps]) {
  repeat<Rows>([&](auto r) MOE64_INLINE {
    repeat<Steps>([&](auto i) MOE64_INLINE {
      std::uint16_t const* const from = x.data + index_t{r} * x.stride + k + index_t{i} * 32;
      index_t const left = count - index_t{i} * 32;
      __m512i const row =
          left >= 32 ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi16(first_words(left), from);
      lanes.acc[r][s] = _mm512_dpbf16_ps(lanes.acc[r][s], as_bf16(row), as_bf16(numbers[i]));
    });
  });
}

/// dots [Rows, streams] = x rows times the weights of each stream, 8-bit floats by table. Shared:
/// all streams have the tables of the first.
template <std::size_t Rows, bool Shared>
void multiply_by_table(row_panel x, stream_codes const& w, index_t depth, float* dots) {
  dot_lanes lanes = {};
  index_t k = 0;
  for (index_t at = 0; k < depth; ++at) {
    constexpr std::size_t distinct = Shared ? 1 : streams;
    float8_table table[distinct];
    repeat<distinct>([&](auto s) MOE64_INLINE { table[s] = w.tables[s][at]; });
    index_t const end = std::min(depth, k + w.columns);
    for (; k + 64 <= end; k += 64) {
      repeat<streams>([&](auto s) MOE64_INLINE {
        pair const numbers =
            table[Shared ? 0 : s.value].dequantize(_mm512_loadu_si512(w.codes[s] + k));
        add_step<Rows, 2>(lanes, x, s, k, 64, {numbers.first, numbers.second});
      });
    }
    if (k == end) continue;
    index_t const left = end - k;
    repeat<streams>([&](auto s) MOE64_INLINE {
      pair const numbers = table[Shared ? 0 : s.value].dequantize(
          _mm512_maskz_loadu_epi8(first_bytes(left), w.codes[s] + k));
      add_step<Rows, 2>(lanes, x, s, k, left,
                        {_mm512_maskz_mov_epi16(first_words(left), numbers.first),
                         _mm512_maskz_mov_epi16(first_words(left - 32), numbers.second)});
    });
    k = end;
  }
  store_dots<Rows>(lanes, dots, streams);
}

/// The same for codes with a scale every 32 columns or multiples of it: dequantize(codes of column
/// 0, k, columns left, factor) gives 32 numbers, zeros past the last.
template <std::size_t Rows, class Dequantize>
void multiply_by_scale(row_panel x, stream_codes const& w, index_t depth,
                       Dequantize const& dequantize, float* dots) {
  dot_lanes lanes = {};
  index_t at = 0;
  for (index_t k = 0, in_block = 0; k < depth; k += 32) {
    repeat<streams>([&](auto s) MOE64_INLINE {
      __m512i const numbers = dequantize(w.codes[s], k, depth - k, _mm512_set1_ps(w.scales[s][at]));
      add_step<Rows, 1>(lanes, x, s, k, depth - k, {numbers});
    });
    in_block += 32;
    if (in_block != w.columns) continue;
    in_block = 0;
    ++at;
  }
  store_dots<Rows>(lanes, dots, streams);
}

/// The streams of a task: which row of weights each reads, and what their codes mean.
class stream_reader {
 public:
  stream_reader(weight_stack const& weights, tile_place const& task)
      : weights_(weights),
        task_(task),
        rows_(ceil_div(task.outs, index_t{streams})),
        by_table_(weight_reader::how(weights) == reading::table),
        whole_rows_(weights.layout().cols_per_scale(weights.cols()) >= weights.cols()),
        readers_{{weights, task.expert},
                 {weights, task.expert},
                 {weights, task.expert},
                 {weights, task.expert}} {
    part_row const first = part_row_of(weights, task.out_begin);
    part_row const last = part_row_of(weights, task.out_begin + task.outs - 1);
    index_t const block = weights.layout().rows_per_scale(weights.part_rows());
    shared_ = first.part == last.part && first.row / block == last.row / block;
    now_.columns = weights.layout().cols_per_scale(weights.cols());
    for (std::size_t s = 0; whole_rows_ && s < streams; ++s) {
      for (index_t n = 0; n < rows_;) {
        part_row const place = place_of(s, n);
        // Past the task's last output the last row is repeated: its scale is then read again.
        index_t const there = std::max<index_t>(1, task.outs - static_cast<index_t>(s) * rows_ - n);
        index_t const run = std::min({rows_ - n, weights.part_rows() - place.row, there});
        readers_[s].load_row_scales(place, run, 0, scales_[s] + n);
        n += run;
      }
    }
  }

  [[nodiscard]] index_t rows() const { return rows_; }
  [[nodiscard]] bool by_table() const { return by_table_; }
  /// Whether all streams have the tables of the first.
  [[nodiscard]] bool shared() const { return shared_; }

  /// The output of the task that row n of stream s is; a stream that has ended repeats the last
  /// one.
  [[nodiscard]] index_t out(std::size_t s, index_t n) const {
    return std::min(static_cast<index_t>(s) * rows_ + n, task_.outs - 1);
  }

  /// To be asked for n = 0, 1, ... in turn.
  stream_codes const& row(index_t n) {
    for (std::size_t s = 0; s < streams; ++s) {
      if (n < run_end_[s]) {
        now_.codes[s] += row_bytes_[s];
      } else {
        start_run(s, n);
      }
      if (!whole_rows_) continue;
      now_.scales[s] = &scales_[s][n];
      if (by_table_) now_.tables[s] = table_of(s, n);
    }
    return now_;
  }

 private:
  [[nodiscard]] part_row place_of(std::size_t s, index_t n) const {
    return part_row_of(weights_, task_.out_begin + out(s, n));
  }

  /// Row n of stream s, and how many behind it have the same tables or scales and lie at equal
  /// distances.
  void start_run(std::size_t s, index_t n) {
    part_row const place = place_of(s, n);
    quantized_view const& matrix = weights_.part(place.part);
    now_.codes[s] = readers_[s].codes_at(matrix, place.row, 0);
    row_bytes_[s] = matrix.values().stride[1] * bits(matrix.type()) / 8;
    index_t const there = std::max<index_t>(1, task_.outs - static_cast<index_t>(s) * rows_ - n);
    index_t run = std::min(weights_.part_rows() - place.row, there);
    if (!whole_rows_) {
      index_t const block = weights_.layout().rows_per_scale(weights_.part_rows());
      run = std::min(run, block - place.row % block);
      if (by_table_) {
        now_.tables[s] = readers_[shared_ ? 0 : s].prepare_tables(place, 0, weights_.cols());
      } else {
        now_.scales[s] = readers_[s].scales_of(place, weights_.cols());
      }
    }
    run_end_[s] = n + run;
  }

  float8_table const* table_of(std::size_t s, index_t n) {
    if (scales_[s][n] != made_for_[s]) {
      made_for_[s] = scales_[s][n];
      tables_[s] = native_table(magnitudes_of(weights_.type()), scales_[s][n]);
    }
    return &tables_[s];
  }

  weight_stack const& weights_;
  tile_place const& task_;
  index_t rows_;
  bool by_table_;
  bool whole_rows_;
  bool shared_ = false;
  stream_codes now_ = {};
  index_t run_end_[streams] = {};
  index_t row_bytes_[streams] = {};
  // The scales that tables_ were made for; NaN, which is equal to nothing: for none yet.
  float made_for_[streams] = {unmade, unmade, unmade, unmade};
  alignas(64) float8_table tables_[streams];
  float scales_[streams][longest_stream];  // where one holds for a whole row
  weight_reader readers_[streams];
};

template <std::size_t Rows>
void multiply_row(row_panel x, weight_stack const& weights, stream_reader const& reader,
                  stream_codes const& w, float* dots) {
  index_t const depth = weights.cols();
  if (reader.by_table()) {
    return reader.shared() ? multiply_by_table<Rows, true>(x, w, depth, dots)
                           : multiply_by_table<Rows, false>(x, w, depth, dots);
  }
  auto const* const values = weights.type() == dtype::int4 ? nibble_values<dtype::int4>.data()
                                                           : nibble_values<dtype::fp4>.data();
  if (weights.type() == dtype::int8) {
    multiply_by_scale<Rows>(
        x, w, depth,
        [&](std::uint8_t const* codes, index_t k, index_t left, __m512 factor)
            MOE64_INLINE { return scale_int8(codes + k, left, factor); },
        dots);
  } else if (bits(weights.type()) == 4) {
    multiply_by_scale<Rows>(
        x, w, depth,
        [&](std::uint8_t const* codes, index_t k, index_t left, __m512 factor)
            MOE64_INLINE { return scale_nibbles(codes + k / 2, left, values, factor); },
        dots);
  } else {
    float8_table const exact = float8_table::exact(weights.type());
    multiply_by_scale<Rows>(
        x, w, depth,
        [&](std::uint8_t const* codes, index_t k, index_t left, __m512 factor) MOE64_INLINE {
          return scale_float8(codes + k, std::min<index_t>(left, 32), exact, factor).first;
        },
        dots);
  }
}

}  // namespace

index_t outs_of_few(grouped_gemm_args const& args, stream where) {
  weight_stack const& weights = args.weights;
  reading const how = weight_reader::how(weights);
  bool const in_registers = how == reading::table || how == reading::scaled;
  if (!in_registers || args.low_rank.u.present() || weights.cols() > depth_tile) return 0;
  index_t const most_experts = std::min(weights.experts(), args.x.rows());
  index_t const long_tasks = most_experts * ceil_div(args.y.extent[1], most_outs);
  // Streams of one block of rows share their tables.
  index_t const block = weights.layout().rows_per_scale(weights.part_rows());
  index_t const longest =
      block == 1 ? longest_stream
                 : std::clamp(block / index_t{streams}, shortest_stream, longest_stream);
  bool const enough = long_tasks >= 4 * concurrency_of(where);
  return index_t{streams} * (enough ? longest : shortest_stream);
}

void compute_few(grouped_gemm_args const& args, tile_place const& task) {
  stream_reader reader(args.weights, task);
  row_panel const x = rows_of(args.x.values(), task.row_begin);
  alignas(64) float acc[few_rows][most_outs];
  for (index_t n = 0; n < reader.rows(); ++n) {
    stream_codes const& w = reader.row(n);
    float dots[few_rows][streams];
    with_rows(task.rows, [&](auto rows) {
      multiply_row<rows.value>(x, args.weights, reader, w, &dots[0][0]);
    });
    for (index_t r = 0; r < task.rows; ++r) {
      for (std::size_t s = 0; s < streams; ++s) acc[r][reader.out(s, n)] = dots[r][s];
    }
  }
  N_AVX3::store_tile_simd(args, task, &acc[0][0], nullptr, most_outs);
}

MOE64_END_AVX512_BF16

}  // namespace moe64::cpu::bf16
