#pragma once

#include "moe64/cpu.hpp"
#include "moe64/tensor.hpp"

#include <functional>
#include <string>
#include <vector>

namespace moe64::cases {

/// How far one output is from the oracle.
///
/// The error of a row is |got - wanted| / max(|wanted|, typical) in the 2-norm, where `typical` is
/// the size that such a row is made to have (in a matrix: at least the root mean square of its
/// rows): a row that comes out small by cancellation is not measured against its own smallness. A
/// matrix with more rows than columns is measured by columns. What must be zero has no typical
/// size, and only zero is right. NaN where the oracle is finite is an infinite error.
struct output_error {
  std::string output;
  double worst = 0.0;      ///< over all rows compared
  double bound = 0.0;      ///< 0: must be equal
  index_t worst_row = -1;  ///< the token, row or expert of `worst`
  index_t worst_expert =
      -1;  ///< the expert whose rows have the largest mean error, -1 when rows have no expert
  std::vector<double> by_expert;  ///< worst row of each expert, -1 where none was compared
  index_t compared = 0;           ///< entries of dimension 0: tokens, rows or experts
  index_t total = 0;
  bool per_expert = false;  ///< the entries are experts
  index_t neurons = -1;     ///< of the inter of each expert, where not all were compared

  [[nodiscard]] bool ok() const noexcept { return worst <= bound; }
};

/// What a reference says about one entry of an output's dimension 0.
struct expectation {
  std::vector<double> values;  ///< all its elements, in row-major order
  double typical = 0.0;        ///< 2-norm that one row of it is made to have
};

struct compared_output {
  std::string name;
  tensor_view got;  ///< [n], [n, cols], or [n, rows, cols]: then every row of an entry is a row
  double bound = 0.0;
  /// The [rows, cols] that belong to an entry, where they are not simply entry i of dimension 0.
  std::function<tensor_view(index_t)> part = {};
  bool per_expert = false;  ///< the entries are experts
  index_t neurons = -1;     ///< that an entry is cut to; -1: it is whole
};

/// Entry i of dimension 0 as a matrix [rows, cols].
[[nodiscard]] tensor_view entry_of(tensor_view const& t, index_t i);

using progress_report = std::function<void(index_t done, index_t total)>;

/// Collects the errors of one run.
class comparison {
 public:
  comparison(index_t experts, double budget, cpu_executor* executor, progress_report progress)
      : experts_(experts), budget_(budget), executor_(executor), progress_(std::move(progress)) {}

  /// Multiply-adds that the reference may spend.
  [[nodiscard]] double budget() const noexcept { return budget_; }

  /// Compare the entries `sample` of several outputs of the same `total` entries. `reference(i)`
  /// gives one expectation per output; `experts_of(i)` the experts that entry i came from. Both are
  /// called from many threads.
  void entries(std::vector<compared_output> const& outputs, std::vector<index_t> const& sample,
               index_t total, std::function<std::vector<expectation>(index_t)> const& reference,
               std::function<std::vector<index_t>(index_t)> const& experts_of);

  /// An output of `total` entries, per expert, that the budget does not reach.
  void left_out(std::string const& name, double bound, index_t total);
  /// Whole output: no NaN, and no more zeros than a share that the compared entries do not explain.
  /// `lives(i)`: entry i of dimension 0 is meant to hold numbers.
  void scan(std::string const& name, tensor_view const& got,
            std::function<bool(index_t)> const& lives);
  /// Entries from `begin` on must still be poisoned.
  void untouched(std::string const& name, tensor_view const& got, index_t begin);
  /// Entries for which `dead(i)` holds must be all zero.
  void zero(std::string const& name, tensor_view const& got,
            std::function<bool(index_t)> const& dead);
  /// Something else that is wrong.
  void fault(std::string message) { faults_.push_back(std::move(message)); }

  [[nodiscard]] std::vector<output_error> const& outputs() const noexcept { return outputs_; }
  [[nodiscard]] std::vector<std::string> const& faults() const noexcept { return faults_; }

 private:
  index_t experts_;
  double budget_;
  cpu_executor* executor_;
  progress_report progress_;
  std::vector<output_error> outputs_;
  std::vector<double> zero_share_;  // of the references of outputs_
  std::vector<std::string> faults_;
};

/// At most `limit` of [0, count), always with the first, the last and those of `always`, the others
/// spread evenly.
[[nodiscard]] std::vector<index_t> sample_of(index_t count, double limit,
                                             std::vector<index_t> const& always);

}  // namespace moe64::cases
