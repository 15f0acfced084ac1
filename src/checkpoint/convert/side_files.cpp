#include "checkpoint/convert/files.hpp"
#include "checkpoint/files/checksum.hpp"
#include "checkpoint/files/input_file.hpp"
#include "checkpoint/files/output_file.hpp"
#include "checkpoint/findings/quoted.hpp"
#include "checkpoint/safetensors/tensor_name.hpp"
#include "core/fail.hpp"

#include <algorithm>
#include <array>
#include <vector>

namespace moe64::checkpoint {
namespace {

constexpr index_t piece_bytes = index_t{1} << 20;

bool has_weights(std::string_view name) {
  constexpr std::array<std::string_view, 7> endings = {".safetensors", ".bin", ".pt",  ".pth",
                                                       ".gguf",        ".h5",  ".onnx"};
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

bool is_shard(folder const& source, std::string_view name) {
  return std::any_of(source.shards().begin(), source.shards().end(),
                     [&](shard const& file) { return file.name == name; });
}

/// What an earlier conversion has left beside its output.
bool is_own(std::string_view name) { return name.starts_with(".moe64"); }

}  // namespace

bool describes_tensors(std::string_view name) noexcept {
  return name == "config.json" || name == "params.json" || name == "hf_quant_config.json" ||
         name.ends_with(".safetensors.index.json") || name.ends_with(".bin.index.json");
}

std::vector<std::string> side_files_of(file_system const& files, folder const& source,
                                       std::vector<std::string>& notes) {
  std::string const folder = source.path().string();
  if (source.is_single_file()) {
    notes.push_back(fmt::format("what lies beside {} was not copied: the file was named alone",
                                quoted(folder)));
    return {};
  }
  std::vector<std::string> names;
  if (int const result = files.list_folder(folder, names); result < 0) {
    fail(errc::io_failure, "[convert] {}: listing the folder: {}", escaped_path(folder),
         error_text(-result));
  }
  std::sort(names.begin(), names.end());
  std::vector<std::string> kept;
  for (std::string const& name : names) {
    if (describes_tensors(name) || is_shard(source, name) || is_own(name)) continue;
    file_status status;
    if (name.ends_with(".safetensors")) {
      notes.push_back(
          fmt::format("{} was not copied: it is not part of the checkpoint", quoted(name)));
    } else if (name.starts_with(".")) {
      notes.push_back(fmt::format("{} was not copied: it is hidden", quoted(name)));
    } else if (has_weights(name) || !file_name_problem(partial_name(name)).empty()) {
      notes.push_back(fmt::format("{} was not copied", quoted(name)));
    } else if (files.path_status(folder + "/" + name, true, status) < 0 ||
               status.kind != file_kind::regular) {
      notes.push_back(fmt::format("{} was not copied: it is no regular file", quoted(name)));
    } else {
      kept.push_back(name);
    }
  }
  return kept;
}

bool copy_side_file(file_system const& files, std::string const& folder, std::string const& name,
                    side_file_target const& target, std::vector<std::string>& notes) {
  std::optional<input_file> source;
  try {
    source = input_file::open(files, folder + "/" + name, link_rule::hub_cache);
  } catch (error const& refused) {
    notes.push_back(fmt::format("{} was not copied: {}", quoted(name), refused.what()));
    return false;
  }
  output_file copy(target.out, name, source->bytes(), target.replace);
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(piece_bytes, source->bytes())));
  auto const for_each_piece = [&](auto const& visit) {
    for (index_t at = 0; at < source->bytes(); at += piece_bytes) {
      index_t const count = std::min(piece_bytes, source->bytes() - at);
      visit(at, std::span(buffer).first(static_cast<std::size_t>(count)));
    }
  };
  checksum written;
  for_each_piece([&](index_t at, std::span<std::byte> piece) {
    source->read(at, piece);
    written.add(piece);
    copy.write(at, piece);
  });
  source->check_unchanged();
  copy.finish([&] {
    checksum back;
    for_each_piece([&](index_t at, std::span<std::byte> piece) {
      copy.read(at, piece);
      back.add(piece);
    });
    if (back.value() != written.value()) {
      fail(errc::io_failure, "[convert] {}: what was read back is not what was written",
           escaped_path(copy.path()));
    }
    target.before_name({name, source->bytes(), source->bytes(), written.value()});
  });
  return true;
}

}  // namespace moe64::checkpoint
