// What is known before a conversion begins: its files, their sizes, the space for them.

#include "checkpoint/convert/files.hpp"
#include "checkpoint/convert/resume/manifest.hpp"
#include "moe64/cpu.hpp"
#include "support/defined_checkpoint.hpp"
#include "support/error_matcher.hpp"
#include "support/faulty_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <errno.h>
#include <filesystem>
#include <optional>

namespace moe64::test {
namespace {

namespace fs = std::filesystem;

dialect_case const& small_case() {
  for (dialect_case const& c : dialect_cases()) {
    if (c.id == "D23") return c;
  }
  throw std::invalid_argument("D23");
}

class convert_previews : public ::testing::Test {
 protected:
  convert_previews() {
    checkpoint_builder const builder = small_case().build();
    write_checkpoint(source_, builder, plausible_tensors(builder), 2);
    source_.write("tokenizer.json", "{\"a\": 1}");
    options_.shard_bytes = 400'000;
    reader_.emplace(source_.path().string());
  }

  convert_preview preview(std::string const& out,
                          checkpoint::file_system const& files = checkpoint::posix_files()) {
    return checkpoint::preview_files(reader_->internals(), parent_.file(out), options_,
                                     cpu_stream(), {files, false});
  }
  convert_report convert(std::string const& out,
                         checkpoint::file_system const& files = checkpoint::posix_files()) {
    return checkpoint::convert_files(reader_->internals(), parent_.file(out), options_,
                                     cpu_stream(), {}, {files, false});
  }

  temp_folder source_;
  temp_folder parent_;
  convert_options options_;
  std::optional<checkpoint_reader> reader_;
};

TEST_F(convert_previews, names_and_sizes_are_those_that_are_written_and_nothing_is) {
  auto const planned = preview("out");
  EXPECT_EQ(parent_.count(), 0U);
  convert("out");
  index_t bytes = 0;
  std::size_t found = 0;
  for (auto const& entry : fs::directory_iterator(parent_.path() / "out")) {
    if (entry.path().filename().string().starts_with(".moe64")) continue;
    auto const size = static_cast<index_t>(entry.file_size());
    ++found;
    bytes += size;
    EXPECT_THAT(planned.files,
                ::testing::Contains(::testing::AllOf(
                    ::testing::Field(&convert_file::name, entry.path().filename().string()),
                    ::testing::Field(&convert_file::bytes, size))));
  }
  EXPECT_EQ(planned.files.size(), found);
  EXPECT_EQ(planned.write_bytes, bytes);
  EXPECT_GT(planned.free_bytes, 0);
  EXPECT_GT(planned.seconds, 0.0);
  EXPECT_GT(planned.sampled_bytes, 0);
  EXPECT_TRUE(planned.fits());
}

TEST_F(convert_previews, what_an_earlier_run_wrote_is_kept) {
  auto const whole = preview("out");
  faulty_files files;
  index_t renames = 0;
  files.before = [&](std::string_view call, index_t) {
    return call == "rename" && ++renames == 4 ? -EIO : 0;
  };
  EXPECT_MOE64_ERROR(convert("out", files), errc::io_failure, "name");
  auto const rest = preview("out");
  EXPECT_EQ(rest.report.shards_kept, 2);
  EXPECT_TRUE(rest.files[0].kept && rest.files[1].kept && !rest.files[2].kept);
  EXPECT_EQ(rest.write_bytes, whole.write_bytes - whole.files[0].bytes - whole.files[1].bytes);
  EXPECT_EQ(convert("out").shards_kept, 2);
}

TEST_F(convert_previews, it_refuses_what_the_conversion_would_refuse) {
  fs::create_directory(parent_.path() / "foreign");
  parent_.write("foreign/thesis.tex", "years of work");
  EXPECT_MOE64_ERROR(preview("foreign"), errc::invalid_argument, "not empty", "thesis.tex");
  EXPECT_MOE64_ERROR(
      checkpoint::preview_files(reader_->internals(), source_.path().string(), options_,
                                cpu_stream(), {checkpoint::posix_files(), false}),
      errc::invalid_argument, "is the input");
}

TEST_F(convert_previews, a_disk_that_is_too_small_is_told_before_a_byte_is_written) {
  index_t const needed = preview("out").write_bytes;
  faulty_files files;
  files.most_free_space = needed - 1;
  EXPECT_FALSE(preview("out", files).fits());
  EXPECT_MOE64_ERROR(convert("out", files), errc::io_failure,
                     std::to_string(needed) + " bytes would be written",
                     std::to_string(needed - 1) + " are free", "No space left on device");
  EXPECT_TRUE(fs::is_empty(parent_.path() / "out"));
  EXPECT_EQ(std::count(files.calls.begin(), files.calls.end(), "create_exclusive"), 0);
  files.most_free_space = needed;
  convert("out", files);
}

TEST_F(convert_previews, space_that_is_not_known_is_a_note) {
  faulty_files files;
  files.before = failing("free_space", ENOSYS);
  EXPECT_EQ(preview("out", files).free_bytes, -1);
  EXPECT_THAT(convert("out", files).notes, ::testing::Contains(::testing::HasSubstr("not known")));
}

}  // namespace
}  // namespace moe64::test
