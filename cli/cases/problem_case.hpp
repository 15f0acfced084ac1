#pragma once

#include "cases/comparison.hpp"
#include "cases/queue.hpp"
#include "cases/scenario.hpp"
#include "moe64/problem.hpp"

#include <memory>
#include <string>
#include <vector>

/// Synthetic problems: everything that a problem line stands for, made from its seed, run, and
/// compared with the oracle. Used by `moe64 verify`, `moe64 bench`, `moe64 demo` and the tests.
namespace moe64::cases {

struct case_options {
  data_mode data = data_mode::random;
  cpu_executor* executor =
      nullptr;                ///< fills the operands and runs the oracle; null: the calling thread
  index_t memory_limit = -1;  ///< bytes that may be touched; -1: what the system has left
  index_t routings = 1;       ///< op=layer: independent routings to take turns with use_routing;
                              ///< op=grouped_gemm: stacks of experts
  bool only_timed = false;    ///< nobody looks at results: large inputs on a device may repeat
};

/// What verify found.
struct verification {
  std::string implementation;
  std::vector<output_error> outputs;
  std::vector<std::string>
      faults;  ///< everything else that is wrong: NaN, canaries, rows that were not to be written
  index_t compared = 0;       ///< tokens (or rows) compared with the oracle ...
  index_t total = 0;          ///< ... of so many
  index_t skipped_slots = 0;  ///< slots that hold no expert

  [[nodiscard]] bool ok() const;
  [[nodiscard]] double worst_error() const;
  /// Largest error in units of its bound; infinite where equality was asked for and is not there.
  [[nodiscard]] double worst_share() const;
  /// Every output that is out of bounds, and every fault, in words; empty when ok.
  [[nodiscard]] std::string message() const;
};

/// Multiply-adds that the oracle spends on a problem before it samples.
inline constexpr double default_budget = 1e9;

class problem_case {
 public:
  /// Builds all operands. Throws moe64::error: unsupported, out_of_memory, size_overflow,
  /// invalid_argument.
  explicit problem_case(problem const& p, case_options const& options = {});
  ~problem_case();
  problem_case(problem_case const&) = delete;
  problem_case& operator=(problem_case const&) = delete;

  [[nodiscard]] problem const& what() const noexcept;
  /// Poison outputs and scratch.
  void prepare();
  /// Run once, on whatever outputs and scratch hold. On a CUDA device it returns when the work is
  /// queued.
  void execute(stream where) const;
  /// Routings that the case was built with (1 for anything but a layer and a grouped_gemm), and
  /// which one execute uses from now on. The first is the one that verify knows.
  [[nodiscard]] index_t routings() const;
  void use_routing(index_t routing);
  /// Wait for what was executed, and let output() show it.
  void collect(stream where) const;
  /// Compare what the last execution left with the oracle.
  [[nodiscard]] verification verify(stream where, double budget = default_budget,
                                    progress_report progress = {}) const;

  [[nodiscard]] std::vector<operation_report> explain(stream where) const;
  /// The first implementation that takes the problem, or the one it forces.
  [[nodiscard]] std::string implementation(stream where) const;
  /// The compute mode and why it was chosen, where there is a choice.
  [[nodiscard]] std::string remark() const;
  [[nodiscard]] work cost() const;
  [[nodiscard]] index_t workspace_bytes() const;
  /// Bytes of all inputs (experts without a slot excepted where they are never touched) and
  /// outputs.
  [[nodiscard]] index_t operand_bytes() const;
  /// Bytes that the case takes on its CUDA device.
  [[nodiscard]] index_t device_bytes() const;
  [[nodiscard]] std::vector<named_tensor> outputs() const;
  /// Outputs by name; errc::invalid_argument for one that the problem does not have.
  [[nodiscard]] tensor_view output(std::string_view name) const;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

/// Poison, then execute.
void run(problem_case& c, stream where);

}  // namespace moe64::cases
