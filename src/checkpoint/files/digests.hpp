#pragma once

#include "checkpoint/convert/parallel_work.hpp"
#include "checkpoint/files/folder.hpp"
#include "checkpoint/findings/findings.hpp"
#include "moe64/check.hpp"

#include <span>
#include <string>
#include <vector>

namespace moe64::checkpoint {

/// What is written down about a file beside it.
struct stated_digest {
  std::string sha256;  ///< 64 digits, or empty
  std::string source;  ///< where that is from
};

/// Looks where the Hub's client leaves it: in the name of the blob that a file of its cache links
/// to, and in .cache/huggingface/download/NAME.metadata of a folder that was downloaded to.
[[nodiscard]] stated_digest stated_digest_of(std::string const& folder, std::string const& name);

/// Reads every file of the checkpoint from its first byte to its last.
[[nodiscard]] std::vector<file_digest> digests_of(folder const& files, stream where,
                                                  progress_counter& progress);

/// What differs is an error; a file about which nothing is known, a note.
void compare_digests(std::span<file_digest const> digests, findings& found);

}  // namespace moe64::checkpoint
