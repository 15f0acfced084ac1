#pragma once

#include "moe64/export.hpp"
#include "moe64/index.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace moe64 {

/// How far a long job is. Called from one thread at a time, a few times a second at most. It may
/// throw: the job then stops, and leaves nothing half-written under a final name.
using progress_report = std::function<void(index_t done_bytes, index_t total_bytes)>;

enum class finding_level : std::uint8_t {
  note = 0,     ///< worth knowing
  warning = 1,  ///< legal, but often a mistake
  error = 2,    ///< the checkpoint is not what it says it is
};

/// One thing that was found out about a checkpoint. Texts are safe to print.
struct checkpoint_finding {
  finding_level level = finding_level::note;
  std::string rule;    ///< a stable word to filter by: "missing-scale"
  std::string tensor;  ///< the tensor or module that it is about, or empty
  std::string text;    ///< a sentence with the values
};

struct checkpoint_options {
  bool lenient = false;       ///< accept unknown fields in safetensors headers
  bool follow_links = false;  ///< any symbolic link, not only those of a Hub cache
  bool mapped = false;        ///< mmap instead of pread: for files that nobody changes
  /// What the files leave open or say wrongly, such as "block=128x128": docs/checkpoints.md.
  std::vector<std::string> assume = {};
};

/// A checkpoint on disk, opened and understood: headers validated, index checked, every expert
/// weight matched with its scales. What is wrong with its meaning is in findings(); a file that
/// breaks the rules of its format is an exception. All const members may be called from several
/// threads at once.
class MOE64_API checkpoint_reader {
 public:
  /// A folder, or one safetensors file. errc::malformed_file or errc::io_failure with the file's
  /// name.
  explicit checkpoint_reader(std::string const& path, checkpoint_options const& options = {});
  checkpoint_reader(checkpoint_reader&&) noexcept;
  checkpoint_reader& operator=(checkpoint_reader&&) noexcept;
  ~checkpoint_reader();

  [[nodiscard]] std::string const& path() const noexcept;
  [[nodiscard]] std::vector<checkpoint_finding> findings() const;

  struct state;  ///< src/checkpoint/opened.hpp
  [[nodiscard]] state const& internals() const noexcept { return *state_; }

 private:
  std::unique_ptr<state> state_;
};

}  // namespace moe64
