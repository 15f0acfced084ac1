#pragma once

#include "moe64/checkpoint.hpp"
#include "moe64/device.hpp"
#include "moe64/export.hpp"
#include "moe64/index.hpp"
#include "moe64/part.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moe64 {

/// What quantised weights become.
enum class convert_target : std::uint8_t {
  bf16 = 0,
  f16 = 1,
  fp8_block = 2,  ///< e4m3, one f32 scale per 128x128: `weight_scale_inv`, quant_method fp8
  fp8_row = 3,    ///< e4m3, one scale per output: `weight_scale`, compressed-tensors
  same = 4,       ///< what they are: every tensor is copied into files of another size
};
/// "bf16", "f16", "fp8-block", "fp8-row", "same".
[[nodiscard]] MOE64_API std::string_view name(convert_target target) noexcept;

struct convert_options {
  convert_target to = convert_target::bf16;
  index_t memory_bytes = index_t{512} << 20;  ///< of all buffers together, whatever the tensors are
  index_t shard_bytes = 5'000'000'000;        ///< of tensors in one file; a larger tensor is alone
  /// Convert what is understood of a checkpoint that is not sound. The rest is copied as stored,
  /// and each error is an anomaly.
  bool unsound = false;
  /// Write no more than this: the result is a part of a checkpoint, with the configs of the whole.
  checkpoint_part part = {};
};

/// What became of a tensor of the input.
enum class tensor_fate : std::uint8_t {
  converted = 0,  ///< its numbers are in the output under the target's format
  copied = 1,     ///< byte for byte
  consumed = 2,   ///< a scale or shape that is part of converted numbers now
  dropped = 3,    ///< means nothing in the target: `reason` says why
};
[[nodiscard]] MOE64_API std::string_view name(tensor_fate fate) noexcept;

struct tensor_account {
  std::string tensor;  ///< as the file spells it: escape it before printing
  tensor_fate fate = tensor_fate::copied;
  std::string_view reason;  ///< of a dropped or consumed one, and of a copied one that is not what
                            ///< the target is called; empty: none
};

struct convert_report {
  std::vector<tensor_account> tensors;  ///< every tensor of the input, in order of names
  index_t converted = 0;
  index_t copied = 0;
  index_t consumed = 0;
  index_t dropped = 0;
  index_t output_tensors = 0;
  index_t input_bytes = 0;   ///< of tensors
  index_t output_bytes = 0;  ///< of files with tensors
  index_t shards = 0;
  index_t shards_kept = 0;   ///< found whole from an earlier run
  index_t buffer_bytes = 0;  ///< memory that was used for buffers
  index_t overflows = 0;     ///< finite numbers that became infinite in f16
  index_t not_finite = 0;    ///< NaN or infinite numbers of the output, or scales that are
  std::vector<std::string> dialects;
  std::vector<std::string> assumed;
  std::vector<std::string> side_files;  ///< copied as they are, for the folder to be whole
  std::vector<std::string> notes;       ///< worth knowing; safe to print
  std::vector<std::string> anomalies;   ///< what makes the result doubtful; safe to print

  [[nodiscard]] bool clean() const noexcept { return anomalies.empty(); }
};

/// A file that a conversion writes.
struct convert_file {
  std::string name;
  index_t bytes = 0;
  index_t tensors = 0;  ///< 0: a config, an index or a file that is copied
  bool kept = false;    ///< written by an earlier run
};

/// What a conversion would do.
struct convert_preview {
  std::vector<convert_file> files;  ///< in the order in which they would be written
  index_t write_bytes = 0;          ///< of those that are not kept
  index_t free_bytes = -1;          ///< on the disk of the output; -1: the system does not say
  index_t freed_bytes = 0;          ///< of files of an earlier run that would make way
  double seconds = 0;               ///< to read and convert everything: an estimate ...
  index_t sampled_bytes = 0;        ///< ... from converting so many bytes of the output in memory
  convert_report report;            ///< as far as it is known before any number is looked at

  [[nodiscard]] bool fits() const noexcept {
    return free_bytes < 0 || write_bytes - freed_bytes <= free_bytes;
  }
};

/// Looks at everything that convert() looks at before it begins, with the same refusals but that
/// for the space, and writes nothing. Shards of an earlier run are not read to their end.
[[nodiscard]] MOE64_API convert_preview preview_conversion(checkpoint_reader const& from,
                                                           std::string const& out,
                                                           convert_options const& options,
                                                           stream where);

/// Writes the checkpoint to the folder `out` with every quantised module, expert or not, in the
/// target's format and everything else as it is: docs/checkpoints-convert.md says how tensors are
/// named. In a checkpoint without any quantised module the fp8 targets quantise the routed experts.
/// With bf16 and f16 the other of the two becomes the target too, and f32 where there are no
/// numbers of fewer bits; other f32 and f64 stay, with a reason.
///
/// Nothing stands under its final name in `out` before it is whole, permanent and read back; the
/// index and config.json come last. A job that was stopped goes on where it was: shards that are
/// whole are kept if neither options, input, configs nor library have changed. The same bytes are
/// written whatever the threads, the memory and the number of interruptions. Only files that an
/// earlier run wrote are ever replaced or removed.
///
/// errc::invalid_argument when `out` is the input or holds other files that are in the way;
/// errc::io_failure when another process writes to it, there is too little space, or reading or
/// writing fails; errc::unsupported when no dialect
/// states the result; errc::out_of_memory when memory_bytes is too small for one row of blocks; and
/// whatever makes the checkpoint not sound, unless options.unsound. Work runs on the CPU stream.
MOE64_API convert_report convert(checkpoint_reader const& from, std::string const& out,
                                 convert_options const& options, stream where,
                                 progress_report const& progress = {});

}  // namespace moe64
