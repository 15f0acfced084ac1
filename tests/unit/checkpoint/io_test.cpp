#include "checkpoint/files/input_file.hpp"
#include "checkpoint/safetensors/header.hpp"
#include "support/error_matcher.hpp"
#include "support/faulty_files.hpp"
#include "support/safetensors_text.hpp"
#include "support/temp_folder.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <errno.h>
#include <fcntl.h>
#include <filesystem>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

namespace moe64::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::faulty_files;
using test::temp_folder;

std::string read_string(input_file const& file, index_t offset, std::size_t bytes) {
  std::string text(bytes, '?');
  file.read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

TEST(CheckpointInput, ReadsRegularFiles) {
  temp_folder const folder;
  std::string const path = folder.write("f", "0123456789");
  input_file file = input_file::open(posix_files(), path, link_rule::none);
  EXPECT_EQ(file.bytes(), 10);
  EXPECT_EQ(read_string(file, 3, 4), "3456");
  EXPECT_EQ(read_string(file, 10, 0), "");
  EXPECT_EQ(file.read_text(10), "0123456789");
  EXPECT_NO_THROW(file.check_unchanged());
  EXPECT_MOE64_ERROR(file.read_text(9), errc::malformed_file, "10 bytes, more than 9");
  EXPECT_MOE64_ERROR(read_string(file, 3, 8), errc::invalid_argument, "3 + 8");
  EXPECT_MOE64_ERROR(read_string(file, -1, 1), errc::invalid_argument, "-1");
  EXPECT_MOE64_ERROR(read_string(file, INT64_MAX, 1), errc::invalid_argument, "outside");
  input_file moved = std::move(file);
  EXPECT_EQ(read_string(moved, 0, 2), "01");
  moved = input_file::open(posix_files(), folder.write("g", "xyz"), link_rule::none);
  EXPECT_EQ(read_string(moved, 0, 3), "xyz");
}

TEST(CheckpointInput, RefusesWhatIsNoRegularFile) {
  temp_folder const folder;
  auto const open = [&](std::string const& path) {
    return input_file::open(posix_files(), path, link_rule::any);
  };
  EXPECT_MOE64_ERROR(open(folder.file("none")), errc::io_failure, "none", "No such file");
  EXPECT_FALSE(input_file::open_if_present(posix_files(), folder.file("none"), link_rule::any));
  fs::create_directory(folder.file("folder"));
  EXPECT_MOE64_ERROR(open(folder.file("folder")), errc::io_failure, "is a folder");
  ASSERT_EQ(::mkfifo(folder.file("fifo").c_str(), 0600), 0);
  EXPECT_MOE64_ERROR(open(folder.file("fifo")), errc::io_failure, "FIFO");  // and does not wait
  EXPECT_MOE64_ERROR(open("/dev/zero"), errc::io_failure, "device");
  fs::create_symlink("/dev/zero", folder.file("endless"));
  EXPECT_MOE64_ERROR(open(folder.file("endless")), errc::io_failure, "device");
  EXPECT_MOE64_ERROR(open(folder.write("file", "x") + "/x"), errc::io_failure, "Not a directory");
}

TEST(CheckpointInput, FollowsLinksOfTheHubCacheAlone) {
  temp_folder const folder;
  fs::create_directories(folder.file("blobs"));
  fs::create_directories(folder.file("snapshots/abc"));
  folder.write("blobs/0f1e", "blob");
  folder.write("secret", "secret");
  auto const link = [&](std::string const& target) {
    std::string const path = folder.file("snapshots/abc/m");
    fs::remove(path);
    fs::create_symlink(target, path);
    return path;
  };
  auto const text = [&](std::string const& target, link_rule rule) {
    return input_file::open(posix_files(), link(target), rule).read_text(100);
  };
  EXPECT_EQ(text("../../blobs/0f1e", link_rule::hub_cache), "blob");
  EXPECT_EQ(text("../../blobs/0f1e", link_rule::any), "blob");
  EXPECT_EQ(text("../../secret", link_rule::any), "secret");
  EXPECT_MOE64_ERROR(text("../../blobs/0f1e", link_rule::none), errc::io_failure, "symbolic link",
                     "'../../blobs/0f1e'");
  for (std::string const& target :
       {std::string("../../secret"), std::string("../../blobs/../secret"),
        std::string("../../blobs/.."), std::string("../../blobs/"), std::string("../blobs/0f1e"),
        folder.file("secret"), std::string("/etc/passwd"), std::string("m")}) {
    EXPECT_MOE64_ERROR(text(target, link_rule::hub_cache), errc::io_failure, "symbolic link");
  }
  EXPECT_MOE64_ERROR(text("../../blobs/none", link_rule::hub_cache), errc::io_failure,
                     "does not exist");
  fs::create_symlink("../secret", folder.file("blobs/again"));
  EXPECT_MOE64_ERROR(text("../../blobs/again", link_rule::hub_cache), errc::io_failure,
                     "is a link itself");
  fs::create_directory(folder.file("blobs/folder"));
  EXPECT_MOE64_ERROR(text("../../blobs/folder", link_rule::hub_cache), errc::io_failure,
                     "is a folder");
}

TEST(CheckpointInput, CompletesShortAndInterruptedReads) {
  temp_folder const folder;
  std::string const content = "The quick brown fox jumps over the lazy dog";
  std::string const path = folder.write("f", content);
  faulty_files files;
  files.longest_transfer = 3;
  files.before = [](std::string_view call, index_t number) {
    return (call == "read_at" || call == "open_read") && number % 2 == 1 ? -EINTR : 0;
  };
  input_file const file = input_file::open(files, path, link_rule::none);
  EXPECT_EQ(file.read_text(100), content);
  EXPECT_GT(files.calls.size(), content.size() / 3 * 2);
}

TEST(CheckpointInput, ReportsFailingCalls) {
  temp_folder const folder;
  std::string const path = folder.write("f", "content");
  struct row {
    std::string_view call;
    int error_number;
    std::string_view part;
  };
  for (row const& fault :
       {row{"open_read", EACCES, "Permission denied"},
        row{"open_read", EMFILE, "Too many open files"}, row{"status", EIO, "Input/output error"},
        row{"read_at", EIO, "reading 7 bytes at 0: Input/output error"},
        row{"map", ENOMEM, "mapping"}}) {
    faulty_files files;
    files.before = test::failing(fault.call, fault.error_number);
    auto const use = [&] {
      input_file file = input_file::open(files, path, link_rule::none);
      static_cast<void>(file.read_text(100));
      file.map();
    };
    EXPECT_MOE64_ERROR(use(), errc::io_failure, path, fault.part);
  }
}

TEST(CheckpointInput, AFileThatShrinksIsAnError) {
  temp_folder const folder;
  std::string const path = folder.write("f", std::string(1000, 'x'));
  faulty_files files;
  files.longest_transfer = 100;
  files.before = [&](std::string_view call, index_t /*number*/) {
    if (call == "read_at") fs::resize_file(path, 350);
    return 0;
  };
  input_file const file = input_file::open(files, path, link_rule::none);
  EXPECT_MOE64_ERROR(file.read_text(1000), errc::io_failure, "ends at byte 350", "had 1000 bytes");
  EXPECT_MOE64_ERROR(file.check_unchanged(), errc::io_failure, "had 1000 bytes", "has 350");
}

TEST(CheckpointInput, AFileThatIsModifiedIsSeen) {
  temp_folder const folder;
  std::string const path = folder.write("f", "abc");
  input_file const file = input_file::open(posix_files(), path, link_rule::none);
  timespec const times[2] = {{1000000000, 0}, {1000000000, 5}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  EXPECT_MOE64_ERROR(file.check_unchanged(), errc::io_failure, "was modified");
  // A file that is replaced under its name is not what was opened: that is still read whole.
  folder.write("other", "new content");
  fs::rename(folder.file("other"), path);
  EXPECT_EQ(read_string(file, 0, 3), "abc");
}

TEST(CheckpointInput, MappedFilesAreCheckedBeforeAndAfter) {
  temp_folder const folder;
  std::string const path = folder.write("f", "0123456789");
  faulty_files files;
  input_file file = input_file::open(files, path, link_rule::none);
  file.map();
  EXPECT_EQ(read_string(file, 2, 3), "234");
  EXPECT_EQ(read_string(file, 8, 2), "89");
  EXPECT_EQ(read_string(file, 10, 0), "");
  EXPECT_MOE64_ERROR(read_string(file, 9, 2), errc::invalid_argument, "9 + 2");
  // Grows behind the mapping between the two looks at its size.
  index_t looks = 0;
  files.before = [&](std::string_view call, index_t /*number*/) {
    if (call == "status" && ++looks == 2) fs::resize_file(path, 11);
    return 0;
  };
  EXPECT_MOE64_ERROR(read_string(file, 0, 1), errc::io_failure, "has 11 now");
  EXPECT_MOE64_ERROR(read_string(file, 0, 1), errc::io_failure, "has 11 now");
  input_file empty = input_file::open(files, folder.write("e", ""), link_rule::none);
  empty.map();
  EXPECT_EQ(empty.read_text(0), "");
}

TEST(CheckpointInput, AMappedFileThatShrinksDuringTheCopyIsAnErrorAndNoSignal) {
  temp_folder const folder;
  std::string const path = folder.write("f", std::string(1 << 20, 'x'));
  faulty_files files;
  input_file file = input_file::open(files, path, link_rule::none);
  file.map();
  files.before = [&](std::string_view call, index_t /*number*/) {
    if (call == "copy_mapped") fs::resize_file(path, 0);
    return 0;
  };
  EXPECT_MOE64_ERROR(read_string(file, 0, 1 << 20), errc::io_failure, path, "has 0 now");
}

TEST(CheckpointInput, AMappedFileIsReadWhereTheSystemForbidsTheCopy) {
  temp_folder const folder;
  std::string const path = folder.write("f", "0123456789");
  for (int const refusal : {-EPERM, -ENOSYS}) {
    faulty_files files;
    files.before = [&](std::string_view call, index_t /*number*/) {
      return call == "copy_mapped" ? refusal : 0;
    };
    input_file file = input_file::open(files, path, link_rule::none);
    file.map();
    EXPECT_EQ(read_string(file, 2, 3), "234");
  }
}

TEST(CheckpointInput, ASizePastAllMemoryIsNotBelieved) {
  /// A sparse file of almost 8 EiB, which no disk of ours can make.
  class huge_files : public faulty_files {
   public:
    int status(int descriptor, file_status& result) const override {
      int const answer = faulty_files::status(descriptor, result);
      result.bytes = INT64_MAX;
      return answer;
    }
  };
  temp_folder const folder;
  std::string const small =
      test::safetensors_bytes("{" + test::entry_text("a", "U8", "1", "0,1") + "}", "x");
  huge_files const files;
  input_file const file =
      input_file::open(files, folder.write("m.safetensors", small), link_rule::none);
  EXPECT_MOE64_ERROR(safetensors_header::read(file), errc::malformed_file, "no tensor");
  EXPECT_MOE64_ERROR(file.read_text(1 << 20), errc::malformed_file, "9223372036854775807 bytes");
}

TEST(CheckpointInput, DescriptorsAreClosed) {
  temp_folder const folder;
  std::string const path = folder.write("f", "x");
  auto const open_count = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  auto const before = open_count();
  for (int i = 0; i < 5; ++i) {
    input_file file = input_file::open(posix_files(), path, link_rule::none);
    input_file other = std::move(file);
    file = std::move(other);
    EXPECT_THROW(
        static_cast<void>(input_file::open(posix_files(), folder.path().string(), link_rule::any)),
        error);
  }
  EXPECT_EQ(open_count(), before);
}

}  // namespace
}  // namespace moe64::checkpoint
