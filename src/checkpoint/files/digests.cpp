#include "checkpoint/files/digests.hpp"

#include "checkpoint/files/input_file.hpp"
#include "checkpoint/files/sha256.hpp"
#include "checkpoint/findings/quoted.hpp"

#include <algorithm>
#include <filesystem>
#include <vector>

namespace moe64::checkpoint {
namespace {

constexpr index_t piece_bytes = index_t{2} << 20;

/// The Hub names files that are not in Git LFS by 40 digits of SHA-1: those are no use here.
bool is_sha256(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

std::string second_line(std::string const& text) {
  std::size_t const begin = text.find('\n');
  if (begin == std::string::npos) return {};
  std::size_t const end = text.find_first_of("\r\n", begin + 1);
  return text.substr(begin + 1, end == std::string::npos ? end : end - begin - 1);
}

std::string digest_of(folder const& files, index_t number, progress_counter& progress) {
  shard const& file = files.shards()[static_cast<std::size_t>(number)];
  tensor_entry whole;  // as if the file were one tensor
  whole.name = file.name;
  whole.shard = number;
  whole.bytes = file.bytes;
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(piece_bytes, file.bytes)));
  sha256 sum;
  for (index_t at = 0; at < file.bytes; at += piece_bytes) {
    auto const piece =
        std::span(buffer).first(static_cast<std::size_t>(std::min(piece_bytes, file.bytes - at)));
    files.read(whole, at, piece);
    sum.add(piece);
    progress.add(std::ssize(piece));
  }
  return sum.finish();
}

}  // namespace

stated_digest stated_digest_of(std::string const& folder, std::string const& name) {
  file_system const& system = posix_files();
  std::string target;
  if (system.read_link(folder + "/" + name, target) >= 0) {
    std::string const blob = std::filesystem::path(target).filename().string();
    if (is_sha256(blob)) return {blob, "the Hub cache"};
  }
  constexpr index_t most_bytes = 4096;
  std::string const path = folder + "/.cache/huggingface/download/" + name + ".metadata";
  try {
    auto const file = input_file::open_if_present(system, path, link_rule::none);
    std::string const etag = file ? second_line(file->read_text(most_bytes)) : std::string();
    if (is_sha256(etag)) return {etag, "the metadata of the download from the Hub"};
  } catch (error const&) {
    return {};  // unreadable metadata states nothing
  }
  return {};
}

std::vector<file_digest> digests_of(folder const& files, stream where, progress_counter& progress) {
  auto const shards = files.shards();
  std::vector<file_digest> digests(shards.size());
  run_tasks(where, std::ssize(shards), [&](index_t i) {
    auto const number = static_cast<std::size_t>(i);
    file_digest& digest = digests[number];
    digest.file = shards[number].name;
    std::filesystem::path const alone = shards[number].name;
    bool const single = alone == files.path();  // opened by its own name
    std::string const base = single ? alone.parent_path().string() : files.path().string();
    stated_digest const stated =
        stated_digest_of(base.empty() ? "." : base, alone.filename().string());
    digest.stated = stated.sha256;
    digest.source = stated.source;
    try {
      digest.sha256 = digest_of(files, i, progress);
    } catch (error const& e) {
      if (e.code() != errc::io_failure) throw;
      files.check_unchanged(i);
    }
  });
  return digests;
}

void compare_digests(std::span<file_digest const> digests, findings& found) {
  for (file_digest const& digest : digests) {
    if (digest.sha256.empty()) {
      found.error(errc::io_failure, "unreadable", "", "{}: cannot be read to its end",
                  quoted(digest.file));
    } else if (digest.stated.empty()) {
      found.note("no-sha256", "", "{}: nothing beside it states its SHA-256, which is {}",
                 quoted(digest.file), digest.sha256);
    } else if (digest.stated != digest.sha256) {
      found.error(errc::malformed_file, "wrong-sha256", "",
                  "{}: its SHA-256 is {}, but {} states {}: it is not the file that was published",
                  quoted(digest.file), digest.sha256, digest.source, digest.stated);
    }
  }
}

}  // namespace moe64::checkpoint
