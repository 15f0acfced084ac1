#include "cases/mapping.hpp"

#include "fmt/format.h"
#include "moe64/error.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

namespace moe64::cases {
namespace {

constexpr index_t unlimited = std::numeric_limits<index_t>::max();

/// The number after `key` in a file of "key number" lines, or of one number when `key` is empty.
index_t read_number(char const* path, std::string const& key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (key.empty() || word == key) {
      index_t number = 0;
      if (key.empty()) {
        return !word.empty() && word.find_first_not_of("0123456789") == std::string::npos
                   ? std::stoll(word)
                   : unlimited;
      }
      return file >> number ? number : unlimited;
    }
  }
  return unlimited;
}

}  // namespace

mapping::mapping(index_t bytes) {
  index_t const page = sysconf(_SC_PAGESIZE);
  index_t const whole = align_up(std::max<index_t>(bytes, 1), page);
  void* const memory = mmap(nullptr, static_cast<std::size_t>(whole), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw error(errc::out_of_memory,
                fmt::format("[case] the system has no room for a mapping of {} bytes", whole));
  }
  data_ = static_cast<std::byte*>(memory);
  bytes_ = whole;
}

mapping::~mapping() {
  if (data_ != nullptr) munmap(data_, static_cast<std::size_t>(bytes_));
}

mapping::mapping(mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

mapping& mapping::operator=(mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

index_t available_memory() {
  index_t const kibibytes = read_number("/proc/meminfo", "MemAvailable:");
  index_t available = kibibytes > unlimited / 1024 ? unlimited : kibibytes * 1024;
  index_t const limit = read_number("/sys/fs/cgroup/memory.max", "");
  index_t const used = read_number("/sys/fs/cgroup/memory.current", "");
  if (limit != unlimited && used != unlimited) {
    available = std::min(available, std::max<index_t>(limit - used, 0));
  }
  return available - available / 16;
}

}  // namespace moe64::cases
