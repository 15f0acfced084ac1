#include "support/edited_checkpoint.hpp"

#include "checkpoint/files/folder.hpp"
#include "core/float8.hpp"
#include "moe64/cpu.hpp"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace moe64::test {
namespace {

using checkpoint::file_dtype;
using checkpoint::folder;

std::string text_of_file(std::filesystem::path const& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_file(std::filesystem::path const& path, std::string const& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

index_t replace_all(std::string& text, std::string_view old, std::string_view now,
                    std::size_t end) {
  index_t count = 0;
  for (std::size_t at = text.find(old); at != std::string::npos && at < end;
       at = text.find(old, at + now.size())) {
    text.replace(at, old.size(), now);
    ++count;
  }
  return count;
}

double number_of(file_dtype type, std::byte const* from) {
  if (type == file_dtype::f32) {
    float number = 0;
    std::memcpy(&number, from, sizeof number);
    return static_cast<double>(number);
  }
  std::uint16_t code = 0;
  std::memcpy(&code, from, sizeof code);
  return static_cast<double>(decode_bf16(code));
}

void store_number(file_dtype type, std::byte* into, double number) {
  auto const single = static_cast<float>(number);
  if (type == file_dtype::f32) {
    std::memcpy(into, &single, sizeof single);
    return;
  }
  std::uint16_t const code = encode_bf16(single);
  std::memcpy(into, &code, sizeof code);
}

}  // namespace

edited_checkpoint::edited_checkpoint(synth_options const& options) {
  synthesize(path(), options, cpu_stream());
}

std::vector<std::string> edited_checkpoint::names() const {
  std::vector<std::string> result;
  folder const files = folder::open(path());
  for (auto const& tensor : files.tensors()) result.emplace_back(tensor.name);
  return result;
}

void edited_checkpoint::edit(std::function<bool(std::string const&)> const& wanted,
                             std::function<void(std::vector<std::byte>&)> const& change) {
  index_t edited = 0;
  folder const files = folder::open(path());
  for (auto const& tensor : files.tensors()) {
    if (!wanted(std::string(tensor.name))) continue;
    ++edited;
    std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes));
    files.read(tensor, 0, bytes);
    change(bytes);
    std::string const shard =
        path() + "/" + files.shards()[static_cast<std::size_t>(tensor.shard)].name;
    std::fstream file(shard, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(tensor.begin);
    file.write(reinterpret_cast<char const*>(bytes.data()), std::ssize(bytes));
    if (!file.flush()) throw std::runtime_error("cannot write " + shard);
  }
  if (edited == 0) throw std::invalid_argument("no tensor to be edited");
}

void edited_checkpoint::edit_numbers(std::function<bool(std::string const&)> const& wanted,
                                     std::function<double(index_t, double)> const& change) {
  folder const files = folder::open(path());
  for (auto const& tensor : files.tensors()) {
    if (!wanted(std::string(tensor.name))) continue;
    if (tensor.type != file_dtype::f32 && tensor.type != file_dtype::bf16) {
      throw std::invalid_argument(std::string(tensor.name) + " is neither F32 nor BF16");
    }
    auto const size = static_cast<std::size_t>(checkpoint::bits(tensor.type) / 8);
    edit([&](std::string const& name) { return name == tensor.name; },
         [&](std::vector<std::byte>& bytes) {
           for (std::size_t i = 0; i < bytes.size() / size; ++i) {
             std::byte* const at = bytes.data() + i * size;
             store_number(tensor.type, at,
                          change(static_cast<index_t>(i), number_of(tensor.type, at)));
           }
         });
  }
}

void edited_checkpoint::copy(std::string const& from, std::string const& over) {
  std::vector<std::byte> content;
  edit([&](std::string const& name) { return name == from; },
       [&](std::vector<std::byte>& bytes) { content = bytes; });
  edit([&](std::string const& name) { return name == over; },
       [&](std::vector<std::byte>& bytes) { bytes = content; });
}

void edited_checkpoint::rename(std::string_view old, std::string_view now) {
  if (old.size() != now.size()) throw std::invalid_argument("names of different length");
  index_t renamed = 0;
  for (auto const& entry : std::filesystem::directory_iterator(path())) {
    bool const shard = entry.path().extension() == ".safetensors";
    if (!shard && !entry.path().native().ends_with(".index.json")) continue;
    std::fstream file(entry.path(), std::ios::binary | std::ios::in | std::ios::out);
    std::uint64_t bytes = entry.file_size();
    if (shard) {  // the header alone
      file.read(reinterpret_cast<char*>(&bytes), sizeof bytes);
    }
    std::string text(static_cast<std::size_t>(bytes), ' ');
    auto const begin = file.tellg();
    file.read(text.data(), std::ssize(text));
    index_t const here = replace_all(text, old, now, text.size());
    if (here == 0) continue;
    renamed += here;
    file.seekp(begin);
    file.write(text.data(), std::ssize(text));
    if (!file.flush()) throw std::runtime_error("cannot write " + entry.path().string());
  }
  if (renamed == 0) throw std::invalid_argument(fmt::format("nothing is called {}", old));
}

void edited_checkpoint::configure(std::string_view old, std::string_view now) {
  std::filesystem::path const file = path() + "/config.json";
  std::string text = text_of_file(file);
  if (replace_all(text, old, now, text.size()) == 0) {
    throw std::invalid_argument(fmt::format("config.json has no {}", old));
  }
  write_file(file, text);
}

check_report edited_checkpoint::check() const {
  checkpoint_reader const reader(path());
  return moe64::check(reader, {}, cpu_stream());
}

bool is_of_layer(std::string const& name, index_t layer) {
  return name.find(fmt::format("layers.{}.", layer)) != std::string::npos;
}

}  // namespace moe64::test
