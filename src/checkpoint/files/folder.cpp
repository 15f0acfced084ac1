#include "checkpoint/files/folder.hpp"

#include "checkpoint/files/checksum.hpp"
#include "checkpoint/files/folder_files.hpp"
#include "checkpoint/files/input_file.hpp"
#include "checkpoint/findings/quoted.hpp"
#include "checkpoint/safetensors/header.hpp"
#include "core/fail.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>

namespace moe64::checkpoint {
namespace {

bool name_less(tensor_entry const& a, tensor_entry const& b) { return a.name < b.name; }

using document = std::unique_ptr<json_document const>;

/// A blob of the Hub cache has no ending; a file that has another one is what it is called.
void refuse_other_files(std::filesystem::path const& path) {
  constexpr std::array<std::string_view, 13> others = {
      ".json", ".jsonl", ".bin", ".pt", ".pth",  ".gguf",   ".h5",
      ".npz",  ".onnx",  ".txt", ".md", ".html", ".partial"};
  std::string const ending = path.extension().string();
  if (std::find(others.begin(), others.end(), ending) == others.end()) return;
  fail(errc::malformed_file,
       "[open] {}: is a {} file, expected a folder with safetensors files or one such file",
       escaped_path(path.native()), ending);
}

json_value const* root_of(document const& found) { return found ? &found->root() : nullptr; }

}  // namespace

struct folder::state {
  std::filesystem::path path;
  std::vector<shard> shards;
  std::vector<input_file> files;
  std::vector<safetensors_header> headers;  // own the names and shapes of `tensors`
  std::vector<tensor_entry> tensors;
  std::vector<finding> warnings;
  document config;
  document hf_quant_config;
  document params;
  std::vector<document_source> documents;
  bool single_file = false;

  void open_shard(file_system const& system, std::string const& base, std::string const& name,
                  link_rule links, open_options const& options);
  [[nodiscard]] document read_document(file_system const& system, std::string const& base,
                                       std::string const& name, link_rule links);
  void open_shards(file_system const& system, std::string const& base,
                   std::span<std::string const> names, open_options const& options);
  void sort_tensors();
  void read_neighbours(file_system const& system, link_rule links);
  void check_index(shard_index const& index, std::string const& index_name);
  [[nodiscard]] std::string const& shard_name(index_t position) const {
    return shards[static_cast<std::size_t>(position)].name;
  }
};

void folder::state::open_shard(file_system const& system, std::string const& base,
                               std::string const& name, link_rule links,
                               open_options const& options) {
  input_file file = input_file::open(system, base + name, links);
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (files[i].status().same_file(file.status())) {
      fail(errc::malformed_file, "[open] {}: {} and {} are the same file", escaped_path(base),
           quoted(shards[i].name), quoted(name));
    }
  }
  index_t const left = options.max_tensors - static_cast<index_t>(tensors.size());
  safetensors_header header =
      safetensors_header::read(file, {.lenient = options.lenient, .max_tensors = left});
  auto const position = static_cast<index_t>(shards.size());
  for (tensor_entry entry : header.tensors()) {
    entry.shard = position;
    tensors.push_back(entry);
  }
  warnings.insert(warnings.end(), header.warnings().begin(), header.warnings().end());
  if (options.mode == read_mode::mapped) file.map();
  shards.push_back({.name = name,
                    .bytes = file.bytes(),
                    .data_begin = header.data_begin(),
                    .tensors = static_cast<index_t>(header.tensors().size()),
                    .status = file.status(),
                    .metadata = header.metadata()});
  files.push_back(std::move(file));
  headers.push_back(std::move(header));
}

document folder::state::read_document(file_system const& system, std::string const& base,
                                      std::string const& name, link_rule links) {
  json_limits const limits = {.non_finite = true};
  std::optional<input_file> const file = input_file::open_if_present(system, base + name, links);
  if (!file) return nullptr;
  std::string const text = file->read_text(limits.bytes);
  checksum sum;
  sum.add(std::as_bytes(std::span(text)));
  documents.push_back({name, sum.value()});
  return parse_json(text, base + name, limits);
}

/// All of them, so that one run names every file that is broken or not there.
void folder::state::open_shards(file_system const& system, std::string const& base,
                                std::span<std::string const> names, open_options const& options) {
  constexpr std::size_t shown = 100;
  std::vector<std::string> texts;
  std::optional<error> first;
  for (std::string const& name : names) {
    try {
      open_shard(system, base, name, options.links, options);
    } catch (error const& e) {
      if (!first) first = e;
      texts.emplace_back(e.what());
    }
  }
  if (!first) return;
  if (texts.size() == 1) throw *first;
  std::size_t const more = texts.size() - std::min(texts.size(), shown);
  texts.resize(texts.size() - more);
  fail(first->code(), "[open] {}: {} of {} files cannot be used:\n  {}{}",
       escaped_path(path.native()), texts.size() + more, names.size(), fmt::join(texts, "\n  "),
       more > 0 ? fmt::format("\n  and {} more", more) : std::string());
}

void folder::state::sort_tensors() {
  if (!std::is_sorted(tensors.begin(), tensors.end(), name_less)) {
    std::stable_sort(tensors.begin(), tensors.end(), name_less);
  }
  auto const twice = std::adjacent_find(
      tensors.begin(), tensors.end(),
      [](tensor_entry const& a, tensor_entry const& b) { return a.name == b.name; });
  if (twice != tensors.end()) {
    fail(errc::malformed_file, "[open] {}: tensor {} is in {} and in {}",
         escaped_path(path.native()), quoted(twice->name), quoted(shard_name(twice->shard)),
         quoted(shard_name(std::next(twice)->shard)));
  }
}

/// Both lists are sorted by name: they must be the same names, each in the same file.
void folder::state::check_index(shard_index const& index, std::string const& index_name) {
  auto const refuse = [&](std::string_view name, std::string_view what, std::string_view file) {
    fail(errc::malformed_file, "[open] {}: {}: tensor {} {} {}", escaped_path(path.native()),
         quoted(index_name), quoted(name), what, quoted(file));
  };
  index_t total = 0;
  auto mapped = index.entries().begin();
  for (tensor_entry const& tensor : tensors) {
    if (mapped != index.entries().end() && mapped->name < tensor.name) break;
    if (mapped == index.entries().end() || mapped->name != tensor.name) {
      refuse(tensor.name, "is not in the index, but in", shard_name(tensor.shard));
    }
    // Shards were opened in the order of the index's sorted files.
    if (mapped->file != tensor.shard) {
      refuse(tensor.name, "is not where the index says; it is in", shard_name(tensor.shard));
    }
    total = checked_add(total, tensor.bytes);
    ++mapped;
  }
  if (mapped != index.entries().end()) {
    refuse(mapped->name, "is in the index, but not in", shard_name(mapped->file));
  }
  if (index.total_size() && *index.total_size() != total) {
    warnings.push_back(file_warning("total-size", "{}: total_size is {}, the tensors have {} bytes",
                                    quoted(index_name), *index.total_size(), total));
  }
}

/// What lies beside a file that was named alone may be about something else: what cannot be read
/// there is a warning.
void folder::state::read_neighbours(file_system const& system, link_rule links) {
  std::string const parent = path.parent_path().native();
  std::string const base = parent.empty() || parent.ends_with('/') ? parent : parent + "/";
  for (auto const& [name, into] :
       {std::pair{"config.json", &config}, std::pair{"hf_quant_config.json", &hf_quant_config},
        std::pair{"params.json", &params}}) {
    try {
      *into = read_document(system, base, name, links);
    } catch (error const& refused) {
      warnings.push_back(file_warning("neighbour-config", "{}", refused.what()));
    }
  }
}

folder folder::open(std::filesystem::path const& path, open_options const& options) {
  file_system const& system = options.files != nullptr ? *options.files : posix_files();
  auto opened = std::make_unique<state>();
  opened->path = path;
  file_status status;
  if (int const result = system.path_status(path.native(), true, status); result < 0) {
    fail(errc::io_failure, "[open] {}: {}", escaped_path(path.native()), error_text(-result));
  }
  if (status.kind != file_kind::folder) {
    refuse_other_files(path);
    // Named by the caller itself: whatever it links to is meant.
    opened->open_shard(system, {}, path.native(), link_rule::any, options);
    opened->sort_tensors();
    opened->single_file = true;
    opened->read_neighbours(system, options.links);
    return folder(std::move(opened));
  }
  std::string const base = path.native() + "/";
  chosen_files const chosen = choose_files(system, base, options);
  opened->warnings = chosen.warnings;
  opened->open_shards(system, base, chosen.shards, options);
  opened->sort_tensors();
  if (chosen.index) opened->check_index(*chosen.index, chosen.index_name);
  auto const document_of = [&](std::string const& name) {
    return opened->read_document(system, base, name, options.links);
  };
  opened->config = document_of("config.json");
  opened->hf_quant_config = document_of("hf_quant_config.json");
  opened->params = document_of("params.json");
  return folder(std::move(opened));
}

folder::folder(std::unique_ptr<state> opened) noexcept : state_(std::move(opened)) {}
folder::folder(folder&&) noexcept = default;
folder& folder::operator=(folder&&) noexcept = default;
folder::~folder() = default;

std::filesystem::path const& folder::path() const noexcept { return state_->path; }
std::span<shard const> folder::shards() const noexcept { return state_->shards; }
std::span<tensor_entry const> folder::tensors() const noexcept { return state_->tensors; }
std::vector<finding> const& folder::warnings() const noexcept { return state_->warnings; }
json_value const* folder::config() const noexcept { return root_of(state_->config); }
json_value const* folder::hf_quant_config() const noexcept {
  return root_of(state_->hf_quant_config);
}
json_value const* folder::params() const noexcept { return root_of(state_->params); }
std::span<document_source const> folder::documents() const noexcept { return state_->documents; }
bool folder::is_single_file() const noexcept { return state_->single_file; }

tensor_entry const* folder::find(std::string_view name) const noexcept {
  auto const at = std::lower_bound(
      state_->tensors.begin(), state_->tensors.end(), name,
      [](tensor_entry const& entry, std::string_view wanted) { return entry.name < wanted; });
  return at != state_->tensors.end() && at->name == name ? &*at : nullptr;
}

namespace {

input_file const& file_of(std::vector<input_file> const& files, index_t shard) {
  if (shard < 0 || shard >= static_cast<index_t>(files.size())) {
    fail(errc::invalid_argument, "[read] shard {} of {}", shard, files.size());
  }
  return files[static_cast<std::size_t>(shard)];
}

}  // namespace

void folder::read(tensor_entry const& tensor, index_t offset, std::span<std::byte> into) const {
  input_file const& file = file_of(state_->files, tensor.shard);
  auto const bytes = static_cast<index_t>(into.size());
  if (offset < 0 || offset > tensor.bytes || bytes > tensor.bytes - offset) {
    fail(errc::invalid_argument, "[read] {}: tensor {}: bytes {} + {} of {}",
         escaped_path(file.path()), quoted(tensor.name), offset, bytes, tensor.bytes);
  }
  file.read(checked_add(tensor.begin, offset), into);
}

void folder::check_unchanged(index_t shard) const {
  file_of(state_->files, shard).check_unchanged();
}

}  // namespace moe64::checkpoint
