#pragma once

#include "checkpoint/files/io.hpp"

#include <algorithm>
#include <cstring>
#include <errno.h>
#include <map>
#include <string>
#include <vector>

namespace moe64::test {

/// Files in memory, by path, for reading alone. Every other call answers -ENOSYS.
class memory_files : public checkpoint::file_system {
 public:
  std::map<std::string, std::string, std::less<>> contents;

  int open_read(std::string const& path, bool /*follow*/) const override {
    auto const found = contents.find(path);
    if (found == contents.end()) return -ENOENT;
    return static_cast<int>(std::distance(contents.begin(), found));
  }
  int close(int /*descriptor*/) const override { return 0; }
  int status(int descriptor, checkpoint::file_status& result) const override {
    result = {.kind = checkpoint::file_kind::regular,
              .device = 1,
              .inode = static_cast<std::uint64_t>(descriptor) + 2,
              .bytes = static_cast<index_t>(content(descriptor).size()),
              .modified_ns = 0};
    return 0;
  }
  int path_status(std::string const& path, bool /*follow*/,
                  checkpoint::file_status& result) const override {
    int const descriptor = open_read(path, false);
    if (descriptor >= 0) return status(descriptor, result);
    result = {.kind = checkpoint::file_kind::folder, .device = 1, .inode = 1};
    return 0;
  }
  int list_folder(std::string const& path, std::vector<std::string>& names) const override {
    for (auto const& [name, text] : contents) {
      if (name.starts_with(path)) names.push_back(name.substr(path.size()));
    }
    return 0;
  }
  index_t read_at(int descriptor, std::span<std::byte> into, index_t offset) const override {
    std::string const& text = content(descriptor);
    std::size_t const begin = std::min(text.size(), static_cast<std::size_t>(offset));
    std::size_t const count = std::min(into.size(), text.size() - begin);
    if (count != 0) std::memcpy(into.data(), text.data() + begin, count);
    return static_cast<index_t>(count);
  }

  int open_folder(std::string const&) const override { return -ENOSYS; }
  int create_exclusive(std::string const&) const override { return -ENOSYS; }
  int open_or_create(std::string const&) const override { return -ENOSYS; }
  int read_link(std::string const&, std::string&) const override { return -ENOSYS; }
  int make_folder(std::string const&) const override { return -ENOSYS; }
  int free_space(std::string const&, index_t&) const override { return -ENOSYS; }
  index_t write_at(int, std::span<std::byte const>, index_t) const override { return -ENOSYS; }
  int allocate(int, index_t) const override { return -ENOSYS; }
  int set_size(int, index_t) const override { return -ENOSYS; }
  int sync(int) const override { return -ENOSYS; }
  int rename(std::string const&, std::string const&) const override { return -ENOSYS; }
  int unlink(std::string const&) const override { return -ENOSYS; }
  int lock(int) const override { return -ENOSYS; }
  int map(int, index_t, std::byte const*&) const override { return -ENOSYS; }
  int unmap(std::byte const*, index_t) const override { return -ENOSYS; }
  index_t copy_mapped(std::byte const*, std::span<std::byte>) const override { return -ENOSYS; }

 private:
  std::string const& content(int descriptor) const {
    return std::next(contents.begin(), descriptor)->second;
  }
};

}  // namespace moe64::test
