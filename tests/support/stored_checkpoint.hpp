#pragma once

#include "moe64/check.hpp"
#include "support/checkpoint_builder.hpp"
#include "support/memory_files.hpp"

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace moe64::test {

/// Files in memory that write down which bytes were read how often.
class counting_files : public memory_files {
 public:
  index_t read_at(int descriptor, std::span<std::byte> into, index_t offset) const override;

  mutable std::mutex mutex;
  mutable std::map<int, std::vector<std::uint8_t>> reads;  ///< per byte of each file
  int fails_after = -1;                                    ///< reads until one fails; -1: none does
};

/// A checkpoint in memory with values as a sound one has them: finite codes, scales that are powers
/// of two around 2^-11, the stated shapes true. Tests then spoil single bytes.
class stored_checkpoint {
 public:
  explicit stored_checkpoint(checkpoint_builder described, index_t shards = 1);

  [[nodiscard]] std::vector<std::byte>& bytes(std::string const& name) { return bytes_.at(name); }
  [[nodiscard]] checkpoint_builder& described() { return described_; }
  template <class Stored>
  void set(std::string const& name, index_t i, Stored value) {
    std::memcpy(bytes(name).data() + static_cast<std::size_t>(i) * sizeof value, &value,
                sizeof value);
  }
  /// A number as the tensor's own type stores it; it must be one of that type. U8 takes exponents.
  void set_number(std::string const& name, index_t i, double value);
  void fill_number(std::string const& name, double value);

  [[nodiscard]] index_t data_bytes() const;
  /// Opens and checks it.
  [[nodiscard]] check_report check(index_t threads = 1, progress_report const& progress = {},
                                   std::vector<std::string> const& assumed = {});

  counting_files files;  ///< of the last check
  /// Bytes of tensors that were not read exactly once by the last check; headers do not count.
  [[nodiscard]] index_t bytes_not_read_once() const;

 private:
  void fill(std::string const& name);
  void complete();
  void write_files();
  [[nodiscard]] checkpoint_reader::state open(std::vector<std::string> const& assumed);

  checkpoint_builder described_;
  index_t shards_;
  std::map<std::string, std::vector<std::byte>> bytes_;
  std::map<int, index_t> data_begin_;  // of each file, by descriptor
};

[[nodiscard]] index_t count_of(check_report const& report, std::string_view rule);
/// All findings, one per line: "error nan-code: ...".
[[nodiscard]] std::string texts_of(check_report const& report);

}  // namespace moe64::test
