#pragma once

#include "checkpoint/dialect/stored_matrix.hpp"
#include "checkpoint/merge/deltas.hpp"

#include <span>

namespace moe64::checkpoint {

/// Which rows and columns of a module a piece of output has.
struct delta_region {
  module_delta const* delta = nullptr;
  index_t slice = 0;
  bool turned = false;  ///< rows are inputs and columns outputs
  index_t first = 0;    ///< the module's row (in the orientation of the piece) of row 0 ...
  index_t step = 1;     ///< ... and how far the next one is
  index_t rows = 0;
  index_t cols = 0;
};

/// Bytes of what a factor_reader needs for a region.
struct factor_memory {
  index_t left = 0;
  index_t right = 0;
  index_t numbers = 0;
  index_t stored = 0;

  void cover(factor_memory const& other) noexcept;
  [[nodiscard]] index_t total() const noexcept { return left + right + numbers + stored; }
};
[[nodiscard]] factor_memory memory_of(delta_region const& region);

/// Reads the factors of regions, one after the other, into memory of its own.
class factor_reader {
 public:
  factor_reader(weight_deltas const& deltas, factor_memory const& memory);

  struct factors {
    index_t rank = 0;              ///< 0: nothing is added
    double const* left = nullptr;  ///< [rows, rank], with the scaling; valid until the next call
    float const* narrow_left = nullptr;  ///< the same as f32, where that was asked for
    float const* right = nullptr;        ///< [rank] rows of low_rank_pitch(cols)
  };
  [[nodiscard]] factors read(delta_region const& region, bool narrow);

 private:
  /// Numbers of one factor of one expert: element (k, x) is at k * rank_step + (x - begin) * step.
  struct loaded {
    float const* numbers;
    index_t rank_step;
    index_t step;
    index_t begin;
    [[nodiscard]] float at(index_t k, index_t x) const {
      return numbers[k * rank_step + (x - begin) * step];
    }
  };
  /// Positions [begin, end) of the extent that is not the rank.
  loaded load_a(stated_pair const& pair, index_t expert);
  loaded load_b(stated_pair const& pair, index_t expert, index_t begin, index_t end);
  loaded load(stated_pair const& pair, bool outputs, index_t expert, index_t begin, index_t end);
  void read_run(tensor_entry const& factor, index_t first, index_t count, float* into);
  template <class Number>
  void fill_left(delta_region const& region, delta_term const& term, index_t at, index_t rank);
  void fill_right(delta_region const& region, delta_term const& term, index_t at);
  [[nodiscard]] static index_t position(delta_region const& region, delta_term const& term,
                                        bool outputs, index_t i);

  adapter_files const& adapter_;
  factor_cache& cache_;
  factor_memory memory_;
  piece_buffer left_;
  piece_buffer right_;
  piece_buffer numbers_;
  piece_buffer stored_;
  delta_region last_;  ///< what right_ holds
};

}  // namespace moe64::checkpoint
