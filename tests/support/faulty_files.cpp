#include "support/faulty_files.hpp"

#include <algorithm>

namespace moe64::test {

using checkpoint::file_status;

int faulty_files::ask(std::string_view call) const {
  calls.emplace_back(call);
  return before(call, static_cast<index_t>(calls.size()));
}

int faulty_files::open_read(std::string const& path, bool follow) const {
  int const answer = ask("open_read");
  return answer != 0 ? answer : real_.open_read(path, follow);
}
int faulty_files::open_folder(std::string const& path) const {
  int const answer = ask("open_folder");
  return answer != 0 ? answer : real_.open_folder(path);
}
int faulty_files::create_exclusive(std::string const& path) const {
  int const answer = ask("create_exclusive");
  return answer != 0 ? answer : real_.create_exclusive(path);
}
int faulty_files::open_or_create(std::string const& path) const {
  int const answer = ask("open_or_create");
  return answer != 0 ? answer : real_.open_or_create(path);
}
int faulty_files::close(int descriptor) const {
  int const answer = ask("close");
  int const result = real_.close(descriptor);  // closed in any case, as the system does
  return answer != 0 ? answer : result;
}
int faulty_files::status(int descriptor, file_status& result) const {
  int const answer = ask("status");
  return answer != 0 ? answer : real_.status(descriptor, result);
}
int faulty_files::path_status(std::string const& path, bool follow, file_status& result) const {
  int const answer = ask("path_status");
  return answer != 0 ? answer : real_.path_status(path, follow, result);
}
int faulty_files::read_link(std::string const& path, std::string& target) const {
  int const answer = ask("read_link");
  return answer != 0 ? answer : real_.read_link(path, target);
}
int faulty_files::list_folder(std::string const& path, std::vector<std::string>& names) const {
  int const answer = ask("list_folder");
  return answer != 0 ? answer : real_.list_folder(path, names);
}
int faulty_files::make_folder(std::string const& path) const {
  int const answer = ask("make_folder");
  return answer != 0 ? answer : real_.make_folder(path);
}
int faulty_files::free_space(std::string const& path, index_t& bytes) const {
  int const answer = ask("free_space");
  int const result = answer != 0 ? answer : real_.free_space(path, bytes);
  bytes = std::min(bytes, most_free_space);
  return result;
}
index_t faulty_files::read_at(int descriptor, std::span<std::byte> into, index_t offset) const {
  int const answer = ask("read_at");
  if (answer != 0) return answer;
  auto const count = std::min<std::size_t>(into.size(), static_cast<std::size_t>(longest_transfer));
  return real_.read_at(descriptor, into.first(count), offset);
}
index_t faulty_files::write_at(int descriptor, std::span<std::byte const> from,
                               index_t offset) const {
  int const answer = ask("write_at");
  if (answer != 0) return answer;
  auto const count = std::min<std::size_t>(from.size(), static_cast<std::size_t>(longest_transfer));
  return real_.write_at(descriptor, from.first(count), offset);
}
int faulty_files::allocate(int descriptor, index_t bytes) const {
  int const answer = ask("allocate");
  return answer != 0 ? answer : real_.allocate(descriptor, bytes);
}
int faulty_files::set_size(int descriptor, index_t bytes) const {
  int const answer = ask("set_size");
  return answer != 0 ? answer : real_.set_size(descriptor, bytes);
}
int faulty_files::sync(int descriptor) const {
  int const answer = ask("sync");
  return answer != 0 ? answer : real_.sync(descriptor);
}
int faulty_files::rename(std::string const& from, std::string const& to) const {
  int const answer = ask("rename");
  return answer != 0 ? answer : real_.rename(from, to);
}
int faulty_files::unlink(std::string const& path) const {
  int const answer = ask("unlink");
  return answer != 0 ? answer : real_.unlink(path);
}
int faulty_files::lock(int descriptor) const {
  int const answer = ask("lock");
  return answer != 0 ? answer : real_.lock(descriptor);
}
int faulty_files::map(int descriptor, index_t bytes, std::byte const*& address) const {
  int const answer = ask("map");
  return answer != 0 ? answer : real_.map(descriptor, bytes, address);
}
int faulty_files::unmap(std::byte const* address, index_t bytes) const {
  int const answer = ask("unmap");
  int const result = real_.unmap(address, bytes);
  return answer != 0 ? answer : result;
}
index_t faulty_files::copy_mapped(std::byte const* from, std::span<std::byte> into) const {
  int const answer = ask("copy_mapped");
  if (answer != 0) return answer;
  auto const count = std::min<std::size_t>(into.size(), static_cast<std::size_t>(longest_transfer));
  return real_.copy_mapped(from, into.first(count));
}

faulty_files::hook failing(std::string_view call, int error_number) {
  return [call = std::string(call), error_number](std::string_view now, index_t) {
    return now == call ? -error_number : 0;
  };
}

}  // namespace moe64::test
