// Every way in which writing can fail. The rule each time: an error that says so, and under the
// final name either nothing, or what was there before, or the whole file.

#include "checkpoint/files/folder.hpp"
#include "checkpoint/safetensors/writer.hpp"
#include "support/error_matcher.hpp"
#include "support/faulty_files.hpp"
#include "support/temp_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <errno.h>
#include <fcntl.h>
#include <functional>
#include <sched.h>
#include <signal.h>
#include <string>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace moe64::checkpoint {
namespace {

using test::faulty_files;
using test::temp_folder;

constexpr std::string_view name = "model.safetensors";
constexpr index_t tensor_bytes = 5000;

/// Two tensors, 'a' and 'b', in pieces.
void write_model(file_system const& files, std::string const& path) {
  output_folder const out(files, path);
  safetensors_writer writer(
      out, name, {{"a", file_dtype::u8, {tensor_bytes}}, {"b", file_dtype::u8, {tensor_bytes}}}, {},
      true);
  for (index_t tensor = 0; tensor < 2; ++tensor) {
    std::vector<std::byte> const piece(1000, std::byte('a' + tensor));
    for (index_t done = 0; done < tensor_bytes; done += 1000) writer.append(tensor, piece);
  }
  writer.finish();
}

void expect_whole(std::string const& path) {
  folder const opened = folder::open(path);
  for (tensor_entry const& tensor : opened.tensors()) {
    std::string bytes(tensor_bytes, '?');
    opened.read(tensor, 0, std::as_writable_bytes(std::span(bytes)));
    EXPECT_EQ(bytes, std::string(tensor_bytes, tensor.name[0]));
  }
  EXPECT_EQ(opened.tensors().size(), 2U);
}

/// Runs `body` in a process of its own; its exit status, or minus the signal that ended it.
int in_child(std::function<int()> const& body) {
  pid_t const child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return -1000;
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

/// Calls that one write_model makes, over an old file or into nothing.
index_t calls_of_one_run(bool over_old) {
  temp_folder const place;
  if (over_old) write_model(posix_files(), place.file("out"));
  faulty_files counted;
  write_model(counted, place.file("out"));
  return static_cast<index_t>(counted.calls.size());
}

TEST(CheckpointFaults, CallsComeInTheOrderThatSurvivesAPowerCut) {
  temp_folder const place;
  faulty_files files;
  write_model(files, place.file("out"));
  auto const first = [&](std::string_view call, std::size_t from = 0) {
    auto const at =
        std::find(files.calls.begin() + static_cast<std::ptrdiff_t>(from), files.calls.end(), call);
    EXPECT_NE(at, files.calls.end()) << call;
    return static_cast<std::size_t>(at - files.calls.begin());
  };
  std::size_t const lock = first("lock");
  std::size_t const create = first("create_exclusive");
  std::size_t const allocate = first("allocate");
  std::size_t const write = first("write_at");
  std::size_t const sync = first("sync", write);
  std::size_t const check = first("read_at");
  std::size_t const rename = first("rename");
  std::size_t const folder_sync = first("sync", rename);
  EXPECT_LT(lock, create);
  EXPECT_LT(create, allocate);
  EXPECT_LT(allocate, write);
  EXPECT_LT(write, sync);
  EXPECT_LT(sync, check);
  EXPECT_LT(check, rename);
  EXPECT_EQ(files.calls[folder_sync - 1], "open_folder");
  // Nothing is written between the sync and the rename.
  EXPECT_EQ(std::find(files.calls.begin() + static_cast<std::ptrdiff_t>(sync), files.calls.end(),
                      "write_at"),
            files.calls.end());
}

TEST(CheckpointFaults, ShortAndInterruptedCallsAreCompleted) {
  temp_folder const place;
  faulty_files files;
  files.longest_transfer = 77;
  files.before = [](std::string_view call, index_t number) {
    bool const can = call == "write_at" || call == "read_at" || call == "allocate";
    return can && number % 2 == 0 ? -EINTR : 0;
  };
  write_model(files, place.file("out"));
  expect_whole(place.file("out"));
}

TEST(CheckpointFaults, AnyCallMayFailWithAnyError) {
  index_t refused = 0;
  for (int const error_number : {EIO, ENOSPC}) {
    for (bool const had_old : {false, true}) {
      index_t const total = calls_of_one_run(had_old);
      ASSERT_GT(total, 25);
      for (index_t failing = 1; failing <= total; ++failing) {
        temp_folder const place;
        if (had_old) write_model(posix_files(), place.file("out"));
        faulty_files files;
        std::string failed;
        files.before = [&](std::string_view call, index_t number) {
          if (number != failing) return 0;
          failed = call;
          return -error_number;
        };
        bool succeeded = false;
        try {
          write_model(files, place.file("out"));
          succeeded = true;
        } catch (error const& caught) {
          ++refused;
          EXPECT_EQ(caught.code(), errc::io_failure) << failed;
        }
        // A close or unlink on the way out changes nothing any more.
        if (succeeded) {
          EXPECT_TRUE(failed == "close" || failed == "unlink" || failed == "make_folder") << failed;
        }
        bool const there = place.has("out/" + std::string(name));
        EXPECT_TRUE(there || (!had_old && !succeeded)) << failed;
        if (there) expect_whole(place.file("out"));
        EXPECT_FALSE(place.has("out/.moe64-model.safetensors.partial") && failed != "unlink")
            << failed;
      }
    }
  }
  EXPECT_GT(refused, 60);
}

TEST(CheckpointFaults, AFailedFsyncIsFinal) {
  temp_folder const place;
  write_model(posix_files(), place.file("out"));
  std::string const old = place.read("out/model.safetensors");
  faulty_files files;
  files.before = test::failing("sync", EIO);
  EXPECT_MOE64_ERROR(write_model(files, place.file("out")), errc::io_failure, "fsync",
                     "Input/output error");
  EXPECT_EQ(std::count(files.calls.begin(), files.calls.end(), "sync"), 1);
  EXPECT_EQ(std::count(files.calls.begin(), files.calls.end(), "rename"), 0);
  EXPECT_EQ(place.read("out/model.safetensors"), old);
  EXPECT_FALSE(place.has("out/.moe64-model.safetensors.partial"));
}

TEST(CheckpointFaults, AFullDiskShowsBeforeAnythingIsWritten) {
  temp_folder const place;
  faulty_files files;
  files.before = test::failing("allocate", ENOSPC);
  EXPECT_MOE64_ERROR(write_model(files, place.file("out")), errc::io_failure, "reserving its space",
                     "No space left");
  EXPECT_EQ(std::count(files.calls.begin(), files.calls.end(), "write_at"), 0);
  // A file system that cannot reserve is no reason to fail.
  faulty_files plain;
  plain.before = test::failing("allocate", EOPNOTSUPP);
  write_model(plain, place.file("out"));
  expect_whole(place.file("out"));
}

TEST(CheckpointFaults, BytesThatChangeAfterWritingAreFound) {
  /// Flips one bit in one write, as a bad cable does.
  class flipping_files : public faulty_files {
   public:
    explicit flipping_files(index_t victim) : victim_(victim) {}
    index_t write_at(int descriptor, std::span<std::byte const> from,
                     index_t offset) const override {
      std::vector<std::byte> bytes(from.begin(), from.end());
      if (offset <= victim_ && victim_ < offset + static_cast<index_t>(bytes.size())) {
        bytes[static_cast<std::size_t>(victim_ - offset)] ^= std::byte{0x10};
      }
      return faulty_files::write_at(descriptor, bytes, offset);
    }

   private:
    index_t victim_;
  };
  for (index_t const victim : {0, 9, 100, 200, 5000, 5192, 9999, 10100}) {
    temp_folder const place;
    flipping_files const files(victim);
    EXPECT_MOE64_ERROR(write_model(files, place.file("out")), errc::io_failure,
                       "not what was written");
    EXPECT_FALSE(place.has("out/model.safetensors"));
  }
  temp_folder const place;
  output_folder const out(posix_files(), place.file("out"));
  flipping_files const files(1);
  output_folder const bad(files, place.file("bad"));
  std::string const text = "text";
  EXPECT_MOE64_ERROR(write_file(bad, "f", std::as_bytes(std::span(text)), false), errc::io_failure,
                     "not what was written");
}

TEST(CheckpointFaults, AWriteThatLiesAboutItsCountIsFound) {
  /// Says that all was written, and writes the first half.
  class lying_files : public faulty_files {
   public:
    index_t write_at(int descriptor, std::span<std::byte const> from,
                     index_t offset) const override {
      faulty_files::write_at(descriptor, from.first(from.size() / 2), offset);
      return static_cast<index_t>(from.size());
    }
  };
  temp_folder const place;
  EXPECT_MOE64_ERROR(write_model(lying_files(), place.file("out")), errc::io_failure,
                     "not what was written");
  lying_files unreserved;
  unreserved.before = [](std::string_view call, index_t) {
    return call == "allocate" ? -EOPNOTSUPP : call == "set_size" ? -EFBIG : 0;
  };
  EXPECT_MOE64_ERROR(write_model(unreserved, place.file("out")), errc::io_failure, "reserving");
  EXPECT_FALSE(place.has("out/model.safetensors"));
}

TEST(CheckpointFaults, AWriteThatMakesNoProgressEnds) {
  class stuck_files : public faulty_files {
   public:
    index_t write_at(int, std::span<std::byte const>, index_t) const override { return 0; }
  };
  temp_folder const place;
  EXPECT_MOE64_ERROR(write_model(stuck_files(), place.file("out")), errc::io_failure,
                     "no progress");
}

TEST(CheckpointFaults, KilledAtEveryCall) {
  for (bool const had_old : {false, true}) {
    index_t const total = calls_of_one_run(had_old);
    for (index_t last = 1; last <= total; ++last) {
      temp_folder const place;
      if (had_old) write_model(posix_files(), place.file("out"));
      int const status = in_child([&] {
        faulty_files files;
        files.before = [&](std::string_view, index_t number) {
          if (number == last) ::kill(::getpid(), SIGKILL);
          return 0;
        };
        write_model(files, place.file("out"));
        return 0;
      });
      ASSERT_EQ(status, -SIGKILL);
      bool const there = place.has("out/model.safetensors");
      EXPECT_TRUE(there || !had_old);
      if (there) expect_whole(place.file("out/model.safetensors"));
      write_model(posix_files(), place.file("out"));  // again, over what was left
      expect_whole(place.file("out"));
      EXPECT_FALSE(place.has("out/.moe64-model.safetensors.partial"));
    }
  }
}

/// Reserves nothing, so that the fault shows when writing.
class unreserved_files : public faulty_files {
 public:
  int allocate(int, index_t) const override { return -EOPNOTSUPP; }
  int set_size(int, index_t) const override { return 0; }
};

TEST(CheckpointFaults, ARealShortWriteAtTheFileSizeLimit) {
  temp_folder const place;
  int const status = in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit const limit{4321, 4321};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 10;
    for (bool const reserve : {true, false}) {
      unreserved_files const unreserved;
      try {
        write_model(reserve ? posix_files() : unreserved, place.file("out"));
        return 11;
      } catch (error const& caught) {
        std::string const message = caught.what();
        if (caught.code() != errc::io_failure) return 12;
        if (message.find(reserve ? "reserving" : "writing") == std::string::npos) return 13;
        if (message.find("File too large") == std::string::npos) return 14;
      }
    }
    return 0;
  });
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(place.has("out/model.safetensors"));
  EXPECT_FALSE(place.has("out/.moe64-model.safetensors.partial"));
}

TEST(CheckpointFaults, ADeviceThatIsAlwaysFull) {
  class full_files : public unreserved_files {
   public:
    int create_exclusive(std::string const&) const override {
      return ::open("/dev/full", O_RDWR | O_CLOEXEC);
    }
  };
  temp_folder const place;
  EXPECT_MOE64_ERROR(write_model(full_files(), place.file("out")), errc::io_failure,
                     "No space left on device");
  EXPECT_FALSE(place.has("out/model.safetensors"));
}

TEST(CheckpointFaults, ARealDiskThatIsFull) {
  temp_folder const place;
  constexpr int cannot_mount = 77;
  int const status = in_child([&] {
    bool const own = ::unshare(CLONE_NEWNS) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
    ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    if (!own || ::mount("tmpfs", place.path().c_str(), "tmpfs", 0, "size=8k") != 0) {
      return cannot_mount;
    }
    for (bool const reserve : {true, false}) {
      unreserved_files const unreserved;
      try {
        write_model(reserve ? posix_files() : unreserved, place.path().string());
        return 11;
      } catch (error const& caught) {
        if (caught.code() != errc::io_failure) return 12;
        if (std::string(caught.what()).find("No space left") == std::string::npos) return 13;
      }
      if (place.count() != 0) return 14;  // neither the file, nor a part of it, nor the lock
    }
    return 0;
  });
  if (status == cannot_mount) GTEST_SKIP() << "this machine lets us mount nothing";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace moe64::checkpoint
