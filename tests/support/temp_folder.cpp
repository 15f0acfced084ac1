#include "support/temp_folder.hpp"

#include <fstream>
#include <iterator>
#include <stdexcept>
#include <stdlib.h>

namespace moe64::test {

temp_folder::temp_folder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "moe64_test_XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp " + pattern);
  path_ = pattern;
}

temp_folder::~temp_folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string temp_folder::write(std::string_view name, std::string_view bytes) const {
  std::ofstream out(path_ / name, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw std::runtime_error("writing " + file(name));
  return file(name);
}

std::string temp_folder::read(std::string_view name) const {
  std::ifstream in(path_ / name, std::ios::binary);
  if (!in) throw std::runtime_error("reading " + file(name));
  return {std::istreambuf_iterator<char>(in), {}};
}

bool temp_folder::has(std::string_view name) const {
  return std::filesystem::exists(std::filesystem::symlink_status(path_ / name));
}

std::size_t temp_folder::count() const {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
}

}  // namespace moe64::test
