#include "checkpoint/files/io.hpp"

#include <algorithm>
#include <cstdint>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <system_error>
#include <unistd.h>

namespace moe64::checkpoint {
namespace {

int or_error(int result) { return result < 0 ? -errno : result; }

file_kind kind_of(mode_t mode) {
  if (S_ISREG(mode)) return file_kind::regular;
  if (S_ISDIR(mode)) return file_kind::folder;
  if (S_ISLNK(mode)) return file_kind::link;
  return file_kind::other;
}

file_status status_of(struct stat const& found) {
  return {.kind = kind_of(found.st_mode),
          .device = found.st_dev,
          .inode = found.st_ino,
          .bytes = found.st_size,
          .modified_ns = found.st_mtim.tv_sec * 1'000'000'000 + found.st_mtim.tv_nsec};
}

class posix_file_system final : public file_system {
 public:
  int open_read(std::string const& path, bool follow) const override {
    int const links = follow ? 0 : O_NOFOLLOW;
    return or_error(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | links));
  }
  int open_folder(std::string const& path) const override {
    return or_error(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY));
  }
  int create_exclusive(std::string const& path) const override {
    return or_error(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  }
  int open_or_create(std::string const& path) const override {
    return or_error(
        ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
  }
  int close(int descriptor) const override { return or_error(::close(descriptor)); }

  int status(int descriptor, file_status& result) const override {
    struct stat found = {};
    if (::fstat(descriptor, &found) != 0) return -errno;
    result = status_of(found);
    return 0;
  }
  int path_status(std::string const& path, bool follow, file_status& result) const override {
    struct stat found = {};
    if ((follow ? ::stat(path.c_str(), &found) : ::lstat(path.c_str(), &found)) != 0) {
      return -errno;
    }
    result = status_of(found);
    return 0;
  }
  int read_link(std::string const& path, std::string& target) const override {
    target.assign(PATH_MAX, '\0');
    ssize_t const bytes = ::readlink(path.c_str(), target.data(), target.size());
    if (bytes < 0) return -errno;
    target.resize(static_cast<std::size_t>(bytes));
    return 0;
  }
  int list_folder(std::string const& path, std::vector<std::string>& names) const override {
    DIR* const stream = ::opendir(path.c_str());
    if (stream == nullptr) return -errno;
    for (;;) {
      errno = 0;
      dirent const* const entry = ::readdir(stream);  // NOLINT(concurrency-mt-unsafe)
      if (entry == nullptr) break;
      std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(std::move(name));
    }
    int const problem = errno;
    ::closedir(stream);
    return -problem;
  }
  int make_folder(std::string const& path) const override {
    return or_error(::mkdir(path.c_str(), 0777));
  }
  int free_space(std::string const& path, index_t& bytes) const override {
    struct statvfs found = {};
    if (::statvfs(path.c_str(), &found) != 0) return -errno;
    unsigned long long product = 0;
    bool const too_many = __builtin_mul_overflow(found.f_bavail, found.f_frsize, &product);
    bytes = too_many ? INT64_MAX
                     : static_cast<index_t>(std::min<unsigned long long>(product, INT64_MAX));
    return 0;
  }

  index_t read_at(int descriptor, std::span<std::byte> into, index_t offset) const override {
    ssize_t const bytes = ::pread(descriptor, into.data(), into.size(), offset);
    return bytes < 0 ? -errno : bytes;
  }
  index_t write_at(int descriptor, std::span<std::byte const> from, index_t offset) const override {
    ssize_t const bytes = ::pwrite(descriptor, from.data(), from.size(), offset);
    return bytes < 0 ? -errno : bytes;
  }
  int allocate(int descriptor, index_t bytes) const override {
    return or_error(::fallocate(descriptor, 0, 0, bytes));
  }
  int set_size(int descriptor, index_t bytes) const override {
    return or_error(::ftruncate(descriptor, bytes));
  }
  int sync(int descriptor) const override { return or_error(::fsync(descriptor)); }
  int rename(std::string const& from, std::string const& to) const override {
    return or_error(::rename(from.c_str(), to.c_str()));
  }
  int unlink(std::string const& path) const override { return or_error(::unlink(path.c_str())); }
  int lock(int descriptor) const override {
    return or_error(::flock(descriptor, LOCK_EX | LOCK_NB));
  }

  int map(int descriptor, index_t bytes, std::byte const*& address) const override {
    void* const begin =
        ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ, MAP_SHARED, descriptor, 0);
    if (begin == MAP_FAILED) return -errno;
    address = static_cast<std::byte const*>(begin);
    return 0;
  }
  int unmap(std::byte const* address, index_t bytes) const override {
    return or_error(::munmap(const_cast<std::byte*>(address), static_cast<std::size_t>(bytes)));
  }
  index_t copy_mapped(std::byte const* from, std::span<std::byte> into) const override {
    iovec const target = {into.data(), into.size()};
    iovec const source = {const_cast<std::byte*>(from), into.size()};
    auto const copied = ::process_vm_readv(::getpid(), &target, 1, &source, 1, 0);
    return copied < 0 ? -errno : copied;
  }
};

}  // namespace

file_system const& posix_files() noexcept {
  static posix_file_system const files;
  return files;
}

std::string error_text(int error_number) { return std::system_category().message(error_number); }

}  // namespace moe64::checkpoint
