#pragma once

#include "checkpoint/files/io.hpp"
#include "checkpoint/findings/findings.hpp"
#include "checkpoint/json/json.hpp"
#include "checkpoint/safetensors/tensor_entry.hpp"
#include "moe64/index.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moe64::checkpoint {

/// How bytes of tensors are read.
enum class read_mode : std::uint8_t {
  positioned,  ///< pread: a file that shrinks is an error, never a signal
  mapped,      ///< mmap: the same, from pages that the process shares with the system's cache
};

struct open_options {
  bool lenient = false;                    ///< accept unknown fields in a tensor's entry
  link_rule links = link_rule::hub_cache;  ///< which symbolic links are followed
  read_mode mode = read_mode::positioned;
  std::string index_name = {};         ///< where a folder has several indices: which one
  file_system const* files = nullptr;  ///< the real one when null
  index_t max_tensors = 10'000'000;    ///< of all shards together
};

/// One safetensors file of a folder.
struct shard {
  std::string name;        ///< of the file, inside the folder
  index_t bytes = 0;       ///< of the whole file
  index_t data_begin = 0;  ///< first byte after the header
  index_t tensors = 0;
  file_status status = {};  ///< identity, size and time as they were when it was opened
  std::vector<std::pair<std::string, std::string>> metadata = {};
};

/// A JSON file that was read beside the tensors.
struct document_source {
  std::string name;
  std::uint64_t checksum = 0;  ///< of its bytes
};

/// A checkpoint on disk, opened: every header is read and validated, the index agrees with them,
/// and the files stay open. All members may be called from several threads at once.
class folder {
 public:
  /// A folder with an index, a model.safetensors or shards without an index; or one safetensors
  /// file, with the configs that lie beside it.
  [[nodiscard]] static folder open(std::filesystem::path const& path,
                                   open_options const& options = {});

  folder(folder&&) noexcept;
  folder& operator=(folder&&) noexcept;
  ~folder();

  [[nodiscard]] std::filesystem::path const& path() const noexcept;
  [[nodiscard]] std::span<shard const> shards() const noexcept;
  [[nodiscard]] std::span<tensor_entry const> tensors() const noexcept;  ///< sorted by name
  /// The tensor of that name, or null; logarithmic.
  [[nodiscard]] tensor_entry const* find(std::string_view name) const noexcept;
  [[nodiscard]] std::vector<finding> const& warnings() const noexcept;

  /// One file was opened, which may be a shard of many; its configs are those beside it.
  [[nodiscard]] bool is_single_file() const noexcept;
  /// The root of config.json, hf_quant_config.json, params.json; null where the file is absent.
  [[nodiscard]] json_value const* config() const noexcept;
  [[nodiscard]] json_value const* hf_quant_config() const noexcept;
  [[nodiscard]] json_value const* params() const noexcept;
  /// All of them that are there: what a declaration is read from.
  [[nodiscard]] std::span<document_source const> documents() const noexcept;

  /// Fills `into` with the bytes of the tensor from `offset` on; errc::io_failure when the file
  /// shrank or cannot be read.
  void read(tensor_entry const& tensor, index_t offset, std::span<std::byte> into) const;

  /// errc::io_failure when the shard's file has another size or time than when it was opened.
  void check_unchanged(index_t shard) const;

 private:
  struct state;
  explicit folder(std::unique_ptr<state> opened) noexcept;
  std::unique_ptr<state> state_;
};

}  // namespace moe64::checkpoint
