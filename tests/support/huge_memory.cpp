#include "support/huge_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <set>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

namespace moe64::test {
namespace {

std::size_t place(index_t i) { return static_cast<std::size_t>(i); }

[[noreturn]] void refuse(char const* call, index_t bytes) {
  throw machine_refuses(fmt::format("{} of {} bytes: {}", call, bytes, std::strerror(errno)));
}

/// visit(i, j, k) for every element.
template <class Visit>
void each(tensor_view const& tensor, Visit const& visit) {
  index_t const rows = tensor.rank > 1 ? tensor.extent[1] : 1;
  index_t const cols = tensor.rank > 2 ? tensor.extent[2] : 1;
  for (index_t i = 0; i < tensor.extent[0]; ++i) {
    for (index_t j = 0; j < rows; ++j) {
      for (index_t k = 0; k < cols; ++k) visit(i, j, k);
    }
  }
}

/// Offset in elements; on purpose not the library's own.
index_t place_of(tensor_view const& tensor, index_t i, index_t j, index_t k) {
  return i * tensor.stride[0] + j * tensor.stride[1] + k * tensor.stride[2];
}

tensor_view spread(test_tensor const& from, int dimension, index_t stride) {
  tensor_view view = from.view();
  view.data = nullptr;
  view.stride[dimension] = stride;
  return view;
}

}  // namespace

memory_file::memory_file(index_t bytes)
    : bytes_(align_up(bytes, page_bytes)), descriptor_(memfd_create("moe64 test", MFD_CLOEXEC)) {
  if (descriptor_ < 0 || ftruncate(descriptor_, bytes_) != 0) refuse("memfd_create", bytes_);
  void* const data =
      mmap(nullptr, place(bytes_), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (data == MAP_FAILED) refuse("mmap of a memory file", bytes_);
  data_ = static_cast<std::byte*>(data);
}

memory_file::~memory_file() {
  munmap(data_, place(bytes_));
  close(descriptor_);
}

address_range::address_range(index_t bytes) : bytes_(align_up(bytes, page_bytes)) {
  index_t const with_guards = checked_add(bytes_, 2 * page_bytes);
  void* const data = mmap(nullptr, place(with_guards), PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) refuse("mmap", with_guards);
  data_ = static_cast<std::byte*>(data) + page_bytes;
  if (mprotect(data_, place(bytes_), PROT_READ | PROT_WRITE) != 0) refuse("mprotect", bytes_);
  // A huge page per touched byte would be memory after all. Kernels without them say no to this.
  static_cast<void>(madvise(data_, place(bytes_), MADV_NOHUGEPAGE));
}

address_range::~address_range() { munmap(data_ - page_bytes, place(bytes_ + 2 * page_bytes)); }

void address_range::map(index_t offset, index_t bytes, memory_file const& file,
                        index_t file_offset) {
  if (offset % page_bytes != 0 || bytes % page_bytes != 0 || file_offset % page_bytes != 0 ||
      offset + bytes > bytes_ || file_offset + bytes > file.bytes()) {
    throw std::logic_error(fmt::format("map [{}, {}) of {} to {} of {}", offset, offset + bytes,
                                       bytes_, file_offset, file.bytes()));
  }
  if (bytes == 0) return;
  void* const data = mmap(data_ + offset, place(bytes), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_FIXED, file.descriptor(), file_offset);
  if (data == MAP_FAILED) refuse("mmap of a window", bytes);
}

void address_range::repeat(memory_file const& file) {
  for (index_t at = 0; at < bytes_; at += file.bytes()) {
    map(at, std::min(file.bytes(), bytes_ - at), file);
  }
}

std::vector<index_t> address_range::resident_pages() const {
  constexpr index_t run = index_t{1} << 20;
  std::vector<unsigned char> present(place(run));
  std::vector<index_t> pages;
  index_t const count = bytes_ / page_bytes;
  for (index_t begin = 0; begin < count; begin += run) {
    index_t const length = std::min(run, count - begin);
    if (mincore(data_ + begin * page_bytes, place(length * page_bytes), present.data()) != 0) {
      refuse("mincore", length * page_bytes);
    }
    auto const end = present.begin() + length;
    for (auto at = std::find_if(present.begin(), end, [](auto p) { return p % 2 != 0; }); at != end;
         at = std::find_if(at + 1, end, [](auto p) { return p % 2 != 0; })) {
      pages.push_back(begin + (at - present.begin()));
    }
  }
  return pages;
}

void address_range::forget_pages() const {
  if (madvise(data_, place(bytes_), MADV_DONTNEED) != 0) refuse("madvise", bytes_);
}

page_forgetter::page_forgetter(std::vector<address_range const*> ranges)
    : thread_([ranges = std::move(ranges)](std::stop_token const& stop) {
        while (!stop.stop_requested()) {
          for (address_range const* range : ranges) range->forget_pages();
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
        }
      }) {}

spread_tensor::spread_tensor(test_tensor const& from, int dimension, index_t stride)
    : view_(spread(from, dimension, stride)), memory_(view_.span_bytes()) {
  view_.data = memory_.data();
  index_t const width = bits(view_.type);
  each(view_, [&](index_t i, index_t j, index_t k) {
    std::uint64_t const code = from.code(i, j, k);
    index_t const offset = place_of(view_, i, j, k);
    if (width == 4) {
      auto& byte = memory_.data<std::uint8_t>()[offset / 2];
      byte = static_cast<std::uint8_t>(byte | code << (offset % 2 * 4));
    } else {
      std::memcpy(memory_.data() + offset * (width / 8), &code, place(width / 8));
    }
  });
}

std::string spread_tensor::difference(test_tensor const& expected) const {
  std::string found;
  std::set<index_t> own;  // nibbles that belong to elements
  index_t const width = bits(view_.type);
  auto const* const bytes = memory_.data<std::uint8_t>();
  each(view_, [&](index_t i, index_t j, index_t k) {
    index_t const nibble = place_of(view_, i, j, k) * (width / 4);
    std::uint64_t code = 0;
    for (index_t n = 0; n < width / 4; ++n) {
      own.insert(nibble + n);
      std::uint64_t const byte = bytes[(nibble + n) / 2];
      code |= (byte >> ((nibble + n) % 2 * 4) & 0xfU) << (n * 4);
    }
    // The second nibble of the last byte of an odd packed row is nobody's.
    if (width == 4) own.insert(nibble | 1);
    if (code != expected.code(i, j, k) && found.empty()) {
      found = fmt::format("element ({}, {}, {}) of {} is {:#x}, expected {:#x}", i, j, k,
                          to_string(view_), code, expected.code(i, j, k));
    }
  });
  if (!found.empty()) return found;
  for (index_t const page : memory_.resident_pages()) {
    for (index_t byte = page * page_bytes; byte < (page + 1) * page_bytes; ++byte) {
      bool const lower = (bytes[byte] & 0xfU) != 0 && !own.contains(2 * byte);
      bool const upper = (bytes[byte] & 0xf0U) != 0 && !own.contains(2 * byte + 1);
      if (lower || upper) {
        return fmt::format("byte {} of {} was written: it belongs to no element", byte,
                           to_string(view_));
      }
    }
  }
  return {};
}

void batched_executor::run(index_t tasks, void (*task)(void* context, index_t i),
                           void* context) noexcept {
  struct batch {
    void (*task)(void*, index_t);
    void* context;
    index_t begin;
  };
  for (index_t begin = 0; begin < tasks; begin += tasks_per_batch_) {
    batch now = {task, context, begin};
    pool_.run(
        std::min(tasks_per_batch_, tasks - begin),
        [](void* self, index_t i) {
          auto const* const b = static_cast<batch const*>(self);
          b->task(b->context, b->begin + i);
        },
        &now);
    after_();
  }
}

index_t peak_resident_bytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

index_t anonymous_bytes() {
  long total = 0;
  long resident = 0;
  long of_files = 0;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) throw machine_refuses("/proc/self/statm cannot be read");
  int const read = std::fscanf(file, "%ld %ld %ld", &total, &resident, &of_files);
  std::fclose(file);
  if (read != 3) throw machine_refuses("/proc/self/statm cannot be read");
  return index_t{resident - of_files} * page_bytes;
}

}  // namespace moe64::test
