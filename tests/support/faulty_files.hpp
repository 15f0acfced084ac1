#pragma once

#include "checkpoint/files/io.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace moe64::test {

/// The real file system, with a word to say before each call: the hook gets the name of the call
/// and its number (from 1), and answers 0 to let it happen or -errno to make it fail. Reads and
/// writes can be cut short. Every call is written down.
class faulty_files : public checkpoint::file_system {
 public:
  using hook = std::function<int(std::string_view call, index_t number)>;

  hook before = [](std::string_view, index_t) { return 0; };
  index_t longest_transfer = INT64_MAX;  ///< a read or write moves at most so much
  index_t most_free_space = INT64_MAX;   ///< the disk seems to have at most so much left
  mutable std::vector<std::string> calls;

  int open_read(std::string const& path, bool follow) const override;
  int open_folder(std::string const& path) const override;
  int create_exclusive(std::string const& path) const override;
  int open_or_create(std::string const& path) const override;
  int close(int descriptor) const override;
  int status(int descriptor, checkpoint::file_status& result) const override;
  int path_status(std::string const& path, bool follow,
                  checkpoint::file_status& result) const override;
  int read_link(std::string const& path, std::string& target) const override;
  int list_folder(std::string const& path, std::vector<std::string>& names) const override;
  int make_folder(std::string const& path) const override;
  int free_space(std::string const& path, index_t& bytes) const override;
  index_t read_at(int descriptor, std::span<std::byte> into, index_t offset) const override;
  index_t write_at(int descriptor, std::span<std::byte const> from, index_t offset) const override;
  int allocate(int descriptor, index_t bytes) const override;
  int set_size(int descriptor, index_t bytes) const override;
  int sync(int descriptor) const override;
  int rename(std::string const& from, std::string const& to) const override;
  int unlink(std::string const& path) const override;
  int lock(int descriptor) const override;
  int map(int descriptor, index_t bytes, std::byte const*& address) const override;
  int unmap(std::byte const* address, index_t bytes) const override;
  index_t copy_mapped(std::byte const* from, std::span<std::byte> into) const override;

 protected:
  int ask(std::string_view call) const;
  checkpoint::file_system const& real_ = checkpoint::posix_files();
};

/// A hook that lets the call of that name fail each time.
[[nodiscard]] faulty_files::hook failing(std::string_view call, int error_number);

}  // namespace moe64::test
