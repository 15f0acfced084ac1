#include "checkpoint/synth/files.hpp"

#include "checkpoint/findings/quoted.hpp"
#include "checkpoint/safetensors/shard_index.hpp"
#include "core/fail.hpp"

#include <algorithm>

namespace moe64::checkpoint {
namespace {

using kind = synth_fault_kind;

index_t bytes_of(new_tensor const& tensor) {
  index_t total = bits(tensor.type);
  for (index_t const extent : tensor.shape) total = checked_mul(total, extent);
  return total / 8;
}

/// A checkpoint that is laid over another one would be neither.
void require_empty(output_folder const& folder) {
  std::vector<std::string> names;
  if (int const result = folder.files().list_folder(folder.path(), names); result < 0) {
    fail(errc::io_failure, "[synth] {}: listing the folder: {}", escaped_path(folder.path()),
         error_text(-result));
  }
  for (std::string const& name : names) {
    bool const partial = name.starts_with(".moe64-") && name.ends_with(".partial");
    if (name == ".moe64.lock" || partial) continue;  // what a run that was killed has left
    fail(errc::invalid_argument, "[synth] {}: is not empty, it holds {}",
         escaped_path(folder.path()), quoted(name, 80));
  }
}

std::span<std::byte const> as_bytes(std::string const& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

synth_files::synth_files(output_folder const& folder, synth_plan const& plan, index_t shard_bytes,
                         std::uint64_t seed)
    : folder_(folder), plan_(plan) {
  require_empty(folder);
  assign(shard_bytes);
  open(seed);
}

/// A file that is full ends with the next weight that has a scale behind it, if one is near:
/// readers must find a scale in another file.
void synth_files::assign(index_t shard_bytes) {
  places_.resize(plan_.tensors.size());
  for (synth_tensor const& tensor : plan_.tensors) {
    if (tensor.file.name.empty()) continue;
    total_ = checked_add(total_, bytes_of(tensor.file));
    ++tensors_;
  }
  constexpr index_t usual_count = 3;
  index_t const limit = shard_bytes > 0 ? shard_bytes : ceil_div(total_, usual_count);
  index_t filled = 0;
  bool full = true;
  for (std::size_t i = 0; i < plan_.tensors.size(); ++i) {
    new_tensor const& tensor = plan_.tensors[i].file;
    if (tensor.name.empty()) continue;
    if (full) {
      contents_.emplace_back();
      filled = 0;
    }
    auto& content = contents_.back();
    places_[i] = {static_cast<index_t>(contents_.size()) - 1, static_cast<index_t>(content.size())};
    content.push_back(tensor);
    filled = checked_add(filled, bytes_of(tensor));
    full = filled >= limit && (plan_.tensors[i].scaled || filled - limit >= limit / 4);
  }
  bool const needs_two = plan_.fault.is(kind::duplicate_tensor) ||
                         plan_.fault.is(kind::wrong_index) || plan_.fault.is(kind::missing_shard);
  if (needs_two && contents_.size() < 2) {
    fail(errc::invalid_argument, "[synth] this fault needs two files, and there is one");
  }
  if (!plan_.fault.is(kind::duplicate_tensor)) return;
  copied_ = plan_.modules[static_cast<std::size_t>(plan_.fault.module)].values;
  place const own = places_[static_cast<std::size_t>(copied_)];
  copy_.shard = own.shard == 0 ? 1 : 0;
  auto& other = contents_[static_cast<std::size_t>(copy_.shard)];
  copy_.position = static_cast<index_t>(other.size());
  other.push_back(plan_.tensors[static_cast<std::size_t>(copied_)].file);
}

void synth_files::open(std::uint64_t seed) {
  metadata_list const metadata = {
      {"format", "pt"},
      {"moe64", fmt::format("synthetic {} {}, seed {}", plan_.like, plan_.dialect, seed)}};
  index_t const count = static_cast<index_t>(contents_.size());
  for (index_t shard = 0; shard < count; ++shard) {
    names_.push_back(count == 1 ? plan_.stem + ".safetensors"
                                : shard_file_name(plan_.stem, shard + 1, count));
    writers_.push_back(std::make_unique<safetensors_writer>(
        folder_, names_.back(), contents_[static_cast<std::size_t>(shard)], metadata));
  }
}

void synth_files::append(index_t tensor, std::span<std::byte const> bytes) {
  place const& at = places_[static_cast<std::size_t>(tensor)];
  writers_[static_cast<std::size_t>(at.shard)]->append(at.position, bytes);
  if (tensor == copied_) {
    writers_[static_cast<std::size_t>(copy_.shard)]->append(copy_.position, bytes);
  }
}

void synth_files::finish() {
  if (plan_.fault.is(kind::wrong_scale_shape)) {
    // the numbers that the shape has too many; stacks get one per slice and row
    index_t const scales = plan_.modules[static_cast<std::size_t>(plan_.fault.module)].scales;
    synth_tensor const& tensor = plan_.tensors[static_cast<std::size_t>(scales)];
    new_tensor right = tensor.file;
    right.shape.back() -= 1;
    index_t const missing = bytes_of(tensor.file) - bytes_of(right);
    append(scales, std::vector<std::byte>(static_cast<std::size_t>(missing)));
  }
  for (auto const& writer : writers_) writer->finish();
  for (auto const& [name, text] : plan_.documents) write_file(folder_, name, as_bytes(text), false);
  if (names_.size() > 1) write_index();
  plant_in_files();
}

void synth_files::write_index() {
  std::vector<shard_index::entry> entries;
  for (std::size_t i = 0; i < plan_.tensors.size(); ++i) {
    std::string const& name = plan_.tensors[i].file.name;
    if (name.empty()) continue;
    index_t file = places_[i].shard;
    if (plan_.fault.is(kind::wrong_index) && name == plan_.fault.tensor) {
      file = (file + 1) % count();
    }
    entries.push_back({name, file});
  }
  std::sort(entries.begin(), entries.end(),
            [](auto const& left, auto const& right) { return left.name < right.name; });
  std::string const text = shard_index_text(names_, entries, total_);
  write_file(folder_, plan_.stem + ".safetensors.index.json", as_bytes(text), false);
}

void synth_files::plant_in_files() {
  file_system const& files = folder_.files();
  std::string const path = folder_.path_of(names_.back());
  int result = 0;
  if (plan_.fault.is(kind::missing_shard)) {
    result = files.unlink(path);
  } else if (plan_.fault.is(kind::truncated_shard)) {
    file_status status;
    result = files.path_status(path, false, status);
    int const descriptor = result < 0 ? result : files.open_or_create(path);
    if (descriptor >= 0) {
      result = files.set_size(descriptor, status.bytes - std::min<index_t>(status.bytes / 4, 4096));
      files.close(descriptor);
    } else {
      result = descriptor;
    }
  }
  if (result < 0) {
    fail(errc::io_failure, "[synth] {}: planting the fault: {}", escaped_path(path),
         error_text(-result));
  }
}

}  // namespace moe64::checkpoint
