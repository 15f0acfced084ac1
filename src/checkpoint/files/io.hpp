#pragma once

#include "moe64/index.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace moe64::checkpoint {

enum class file_kind : std::uint8_t { regular, folder, link, other };

struct file_status {
  file_kind kind = file_kind::other;
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  index_t bytes = 0;
  index_t modified_ns = 0;  ///< since 1970

  /// The same file, whatever it holds now.
  [[nodiscard]] bool same_file(file_status const& other) const noexcept {
    return device == other.device && inode == other.inode;
  }
  bool operator==(file_status const&) const = default;
};

/// Which symbolic links input files may be. The Hub cache stores a checkpoint as links of the form
/// ../../blobs/NAME; any other link can point anywhere, so it is followed only when asked for.
enum class link_rule : std::uint8_t { none, hub_cache, any };

/// The calls to the system, and nothing else: tests replace it to make single calls fail. Each
/// answers a value >= 0, or -errno. Calls are not retried and not completed here; input_file and
/// output_file do that.
class file_system {
 public:
  virtual ~file_system() = default;

  /// The descriptor of an existing file for reading. Never waits (as open does on a FIFO); refuses
  /// with -ELOOP when the path is a link and `follow` is false.
  virtual int open_read(std::string const& path, bool follow) const = 0;
  virtual int open_folder(std::string const& path) const = 0;
  virtual int create_exclusive(std::string const& path) const = 0;  ///< read and write
  virtual int open_or_create(std::string const& path) const = 0;
  virtual int close(int descriptor) const = 0;

  virtual int status(int descriptor, file_status& result) const = 0;
  virtual int path_status(std::string const& path, bool follow, file_status& result) const = 0;
  virtual int read_link(std::string const& path, std::string& target) const = 0;
  virtual int list_folder(std::string const& path, std::vector<std::string>& names) const = 0;
  virtual int make_folder(std::string const& path) const = 0;
  /// Bytes that this process may still write to the file system of the path.
  virtual int free_space(std::string const& path, index_t& bytes) const = 0;

  virtual index_t read_at(int descriptor, std::span<std::byte> into, index_t offset) const = 0;
  virtual index_t write_at(int descriptor, std::span<std::byte const> from,
                           index_t offset) const = 0;
  /// Reserves the file's blocks and sets its size.
  virtual int allocate(int descriptor, index_t bytes) const = 0;
  virtual int set_size(int descriptor, index_t bytes) const = 0;
  virtual int sync(int descriptor) const = 0;
  virtual int rename(std::string const& from, std::string const& to) const = 0;
  virtual int unlink(std::string const& path) const = 0;
  virtual int lock(int descriptor) const = 0;  ///< for this process alone; -EWOULDBLOCK when taken

  virtual int map(int descriptor, index_t bytes, std::byte const*& address) const = 0;
  virtual int unmap(std::byte const* address, index_t bytes) const = 0;
  /// Copies from a mapping, through the kernel: pages that a shrunken file has lost give -EFAULT
  /// where the processor would raise a signal. Returns the bytes copied, maybe fewer than asked
  /// for; -EPERM or -ENOSYS where the system does not offer it.
  virtual index_t copy_mapped(std::byte const* from, std::span<std::byte> into) const = 0;
};

/// The real one.
[[nodiscard]] file_system const& posix_files() noexcept;

/// "No space left on device" for ENOSPC.
[[nodiscard]] std::string error_text(int error_number);

}  // namespace moe64::checkpoint
