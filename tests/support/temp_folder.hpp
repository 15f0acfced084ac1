#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace moe64::test {

/// A fresh folder that is removed with everything in it.
class temp_folder {
 public:
  temp_folder();
  temp_folder(temp_folder const&) = delete;
  temp_folder& operator=(temp_folder const&) = delete;
  ~temp_folder();

  [[nodiscard]] std::filesystem::path const& path() const { return path_; }
  [[nodiscard]] std::string file(std::string_view name) const { return (path_ / name).string(); }
  std::string write(std::string_view name, std::string_view bytes) const;  ///< its path
  [[nodiscard]] std::string read(std::string_view name) const;
  [[nodiscard]] bool has(std::string_view name) const;
  [[nodiscard]] std::size_t count() const;  ///< of its files

 private:
  std::filesystem::path path_;
};

}  // namespace moe64::test
