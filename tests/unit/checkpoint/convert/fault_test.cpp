#include "checkpoint/convert/files.hpp"
#include "checkpoint/convert/resume/manifest.hpp"
#include "moe64/cpu.hpp"
#include "support/defined_checkpoint.hpp"
#include "support/error_matcher.hpp"
#include "support/faulty_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <errno.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>

namespace moe64::test {
namespace {

namespace fs = std::filesystem;
using checkpoint::convert_environment;
using checkpoint::convert_files;

dialect_case const& small_case() {
  for (dialect_case const& c : dialect_cases()) {
    if (c.id == "D23") return c;
  }
  throw std::invalid_argument("D23");
}

std::string text_of(fs::path const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Every file of the output but the notes of the conversion about itself.
std::map<std::string, std::string> contents(fs::path const& folder) {
  std::map<std::string, std::string> files;
  if (!fs::exists(folder)) return files;
  for (auto const& entry : fs::directory_iterator(folder)) {
    std::string const name = entry.path().filename().string();
    if (name != checkpoint::manifest_name) files[name] = text_of(entry.path());
  }
  return files;
}

/// A source of two shards, what it becomes, and a place to try it under faults.
class convert_faults : public ::testing::Test {
 protected:
  convert_faults() {
    checkpoint_builder const builder = small_case().build();
    write_checkpoint(source_, builder, plausible_tensors(builder), 2);
    source_.write("tokenizer.json", "{\"a\": 1}");
    options_.shard_bytes = 400'000;  // several files
    reader_.emplace(source_.path().string());
    convert("whole");
    whole_ = contents(parent_.path() / "whole");
    EXPECT_GT(whole_.size(), 5U);
  }

  convert_report convert(std::string const& out,
                         checkpoint::file_system const& files = checkpoint::posix_files()) {
    return convert_files(reader_->internals(), parent_.file(out), options_, cpu_stream(), {},
                         {files, false});
  }

  /// Whatever is there under a final name is exactly what belongs there.
  void expect_nothing_half_written(std::string const& out, std::string const& where) {
    for (auto const& [name, text] : contents(parent_.path() / out)) {
      if (name.ends_with(".partial") || name == ".moe64.lock") continue;
      ASSERT_TRUE(whole_.contains(name)) << where << ": " << name;
      ASSERT_TRUE(whole_.at(name) == text) << where << ": " << name << " is not whole";
    }
  }

  temp_folder source_;
  temp_folder parent_;
  convert_options options_;
  std::optional<checkpoint_reader> reader_;
  std::map<std::string, std::string> whole_;
};

TEST_F(convert_faults, at_every_call_nothing_is_half_written_and_the_next_run_completes_it) {
  faulty_files counting;
  convert("count", counting);
  auto const calls = static_cast<index_t>(counting.calls.size());
  ASSERT_GT(calls, 100);
  index_t failures = 0;
  for (int const problem : {ENOSPC, EIO}) {
    for (index_t at = 1; at <= calls; ++at) {
      faulty_files files;
      files.before = [&](std::string_view, index_t number) { return number == at ? -problem : 0; };
      std::string const where =
          std::to_string(at) + " " + counting.calls[static_cast<std::size_t>(at - 1)];
      try {
        convert("out", files);
        // a call whose failure does not matter: closing, removing, asking for a link
      } catch (error const& refused) {
        ++failures;
        ASSERT_EQ(refused.code(), errc::io_failure) << where << ": " << refused.what();
        std::string const message = refused.what();
        ASSERT_TRUE(message.find(std::strerror(problem)) != std::string::npos ||
                    message.find("another process") != std::string::npos)
            << where << ": " << message;
      }
      expect_nothing_half_written("out", where);
      convert("out");
      ASSERT_EQ(contents(parent_.path() / "out"), whole_) << where;
      fs::remove_all(parent_.path() / "out");
    }
  }
  EXPECT_GT(failures, calls);
}

TEST_F(convert_faults, every_fsync_that_fails_is_final) {
  faulty_files counting;
  convert("count", counting);
  auto const syncs = std::count(counting.calls.begin(), counting.calls.end(), "sync");
  for (index_t which = 1; which <= syncs; ++which) {
    faulty_files files;
    index_t seen = 0;
    index_t calls_behind = 0;
    files.before = [&](std::string_view call, index_t) {
      if (call == "sync" && ++seen == which) return -EIO;
      if (seen >= which && call == "sync") ++calls_behind;
      return 0;
    };
    EXPECT_MOE64_ERROR(convert("out", files), errc::io_failure, "fsync");
    EXPECT_EQ(calls_behind, 0) << "tried again";
    expect_nothing_half_written("out", std::to_string(which));
    fs::remove_all(parent_.path() / "out");
  }
}

TEST_F(convert_faults, short_reads_and_writes_are_completed) {
  faulty_files files;
  files.longest_transfer = 1000;
  convert("out", files);
  EXPECT_EQ(contents(parent_.path() / "out"), whole_);
}

TEST_F(convert_faults, a_stopped_job_keeps_whole_shards) {
  index_t reports = 0;
  progress_report const stop = [&](index_t done, index_t total) {
    if (done * 2 > total) throw error(errc::interrupted, "stop");
    ++reports;
  };
  // the report is asked some ten times a second: stop at the first that is past the half
  bool stopped = false;
  for (int attempt = 0; attempt < 50 && !stopped; ++attempt) {
    try {
      static_cast<void>(convert_files(reader_->internals(), parent_.file("out"), options_,
                                      cpu_stream(), stop, {checkpoint::posix_files(), true}));
      fs::remove_all(parent_.path() / "out");
    } catch (error const& e) {
      EXPECT_EQ(e.code(), errc::interrupted);
      stopped = true;
    }
  }
  EXPECT_TRUE(stopped);
  expect_nothing_half_written("out", "stopped");
  convert("out");
  EXPECT_EQ(contents(parent_.path() / "out"), whole_);
}

TEST_F(convert_faults, resume_keeps_what_is_whole_and_makes_the_rest_again) {
  convert("out");
  fs::path const out = parent_.path() / "out";
  // as if it had been killed: one shard gone, one damaged, no index, no config
  std::string manifest = text_of(out / checkpoint::manifest_name);
  manifest = manifest.substr(0, manifest.find("{\"complete\""));
  std::ofstream(out / checkpoint::manifest_name, std::ios::binary) << manifest + "{\"shard\":\"mod";
  std::string const first = whole_.begin()->first;
  std::vector<fs::path> shards;
  for (auto const& entry : fs::directory_iterator(out)) {
    if (entry.path().extension() == ".safetensors") shards.push_back(entry.path());
  }
  std::sort(shards.begin(), shards.end());
  ASSERT_GT(shards.size(), 2U);
  fs::remove(shards[0]);
  std::fstream damaged(shards[1], std::ios::binary | std::ios::in | std::ios::out);
  damaged.seekp(-3, std::ios::end);
  damaged.put('\x55');
  damaged.close();
  fs::remove(out / "config.json");
  auto const report = convert("out");
  EXPECT_EQ(report.shards_kept, static_cast<index_t>(shards.size()) - 2);
  EXPECT_THAT(report.notes, ::testing::Contains(::testing::HasSubstr("made again")));
  EXPECT_EQ(contents(out), whole_);
}

TEST_F(convert_faults, a_finished_conversion_is_found_whole) {
  convert("out");
  auto const report = convert("out");
  EXPECT_EQ(report.shards_kept, report.shards);
  EXPECT_EQ(contents(parent_.path() / "out"), whole_);
  options_.to = convert_target::f16;
  EXPECT_MOE64_ERROR(convert("out"), errc::invalid_argument, "finished conversion", "options");
  EXPECT_EQ(contents(parent_.path() / "out"), whole_);
}

TEST_F(convert_faults, changed_options_start_over_and_leave_nothing_of_the_old_run) {
  faulty_files files;
  index_t renames = 0;
  files.before = [&](std::string_view call, index_t) {
    return call == "rename" && ++renames == 4 ? -EIO : 0;
  };
  EXPECT_MOE64_ERROR(convert("out", files), errc::io_failure, "name");
  options_.shard_bytes = 700'000;
  auto const report = convert("out");
  EXPECT_EQ(report.shards_kept, 0);
  EXPECT_THAT(report.notes, ::testing::Contains(::testing::HasSubstr("options changed")));
  convert("fresh");
  EXPECT_EQ(contents(parent_.path() / "out"), contents(parent_.path() / "fresh"));
}

TEST_F(convert_faults, changed_input_starts_over) {
  faulty_files files;
  index_t renames = 0;
  files.before = [&](std::string_view call, index_t) {
    return call == "rename" && ++renames == 4 ? -EIO : 0;
  };
  EXPECT_MOE64_ERROR(convert("out", files), errc::io_failure, "name");
  for (auto const& entry : fs::directory_iterator(source_.path())) {
    if (entry.path().extension() == ".safetensors") {
      fs::last_write_time(entry.path(), fs::file_time_type::clock::now() + std::chrono::hours(1));
    }
  }
  reader_.emplace(source_.path().string());
  auto const report = convert("out");
  EXPECT_EQ(report.shards_kept, 0);
  EXPECT_THAT(report.notes, ::testing::Contains(::testing::HasSubstr("input changed")));
  EXPECT_EQ(contents(parent_.path() / "out"), whole_);
}

TEST_F(convert_faults, an_input_that_changes_meanwhile_is_an_error) {
  faulty_files files;
  bool touched = false;
  files.before = [&](std::string_view call, index_t) {
    if (call == "write_at" && !touched) {
      touched = true;
      for (auto const& entry : fs::directory_iterator(source_.path())) {
        fs::last_write_time(entry.path(), fs::file_time_type::clock::now() + std::chrono::hours(2));
      }
    }
    return 0;
  };
  EXPECT_MOE64_ERROR(convert("out", files), errc::io_failure, "model-0000");
}

TEST_F(convert_faults, output_is_neither_the_input_nor_somebody_elses_folder) {
  EXPECT_MOE64_ERROR(convert_files(reader_->internals(), source_.path().string(), options_,
                                   cpu_stream(), {}, {checkpoint::posix_files(), false}),
                     errc::invalid_argument, "is the input");
  fs::create_directory_symlink(source_.path(), parent_.path() / "link");
  EXPECT_MOE64_ERROR(convert("link"), errc::invalid_argument, "is the input");
  fs::create_directory(parent_.path() / "linked");
  for (auto const& entry : fs::directory_iterator(source_.path())) {
    if (entry.path().extension() != ".safetensors") continue;
    fs::create_hard_link(entry.path(), parent_.path() / "linked" / entry.path().filename());
  }
  EXPECT_MOE64_ERROR(convert("linked"), errc::invalid_argument, "holds, the input");
  fs::create_directory(parent_.path() / "foreign");
  std::ofstream(parent_.path() / "foreign" / "thesis.tex") << "years of work";
  EXPECT_MOE64_ERROR(convert("foreign"), errc::invalid_argument, "not empty", "thesis.tex");
  EXPECT_EQ(contents(parent_.path() / "foreign").size(), 1U);
  EXPECT_EQ(contents(source_.path()).count(".moe64.lock"), 0U);
}

TEST_F(convert_faults, a_second_writer_is_refused_at_once) {
  checkpoint::output_folder const held(checkpoint::posix_files(), parent_.file("out"));
  EXPECT_MOE64_ERROR(convert("out"), errc::io_failure, "another process is writing");
}

}  // namespace
}  // namespace moe64::test
