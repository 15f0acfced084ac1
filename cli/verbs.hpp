#pragma once

#include "cases/problem_case.hpp"
#include "exit_code.hpp"
#include "moe64/checkpoint.hpp"
#include "moe64/convert.hpp"
#include "moe64/diff.hpp"
#include "moe64/merge.hpp"
#include "moe64/synth.hpp"
#include "progress.hpp"
#include "terminal.hpp"

#include <cstdint>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <vector>

/// What the tool can do: one function per verb, each in a file of its name.
namespace moe64::cli {

struct problem_options {
  std::vector<std::string> lines;
  std::string file;
  bool json = false;
  index_t threads = 1;
  progress_mode progress = progress_mode::automatic;
};

struct verify_options : problem_options {
  double budget = cases::default_budget;
  cases::data_mode data = cases::data_mode::random;
};

struct bench_options : problem_options {
  double min_seconds = 0.5;
};

struct synth_request {
  std::string out;
  synth_options options;
  bool list = false;
  bool json = false;
  index_t threads = 1;
  progress_mode progress = progress_mode::automatic;
};

/// Options of every verb that opens a checkpoint.
struct folder_options {
  std::string folder;
  checkpoint_options how;
  bool json = false;
  index_t threads = 1;
  progress_mode progress = progress_mode::automatic;
};

struct run_options : folder_options {
  index_t layer = 0;
  bool mtp = false;
  index_t tokens = 64;
  index_t top_k = 0;  ///< 0: what the config states
  std::string device = "cpu";
  std::uint64_t seed = 1;
  bool backward = false;
  double budget = cases::default_budget;
};

struct check_verb_options : folder_options {
  std::string report;  ///< a page to write; empty: none
  checkpoint_part part;
  bool sha256 = false;
  std::string base;  ///< of an adapter; empty: the folder is a checkpoint
  adapter_layout adapter = adapter_layout::as_stated;
};

struct convert_options_asked : folder_options {
  std::string out;
  std::string coverage;  ///< a file for the fate of every tensor, or empty
  bool dry_run = false;
  convert_options what;
};

struct merge_options_asked : folder_options {
  std::string adapter;
  std::string out;
  merge_options what;
};

struct diff_options_asked : folder_options {
  std::string other;
  diff_options what;
  index_t shown = 40;
};

[[nodiscard]] exit_code inspect(folder_options const& options);
[[nodiscard]] exit_code check(check_verb_options const& options);
[[nodiscard]] exit_code convert_verb(convert_options_asked const& asked);
[[nodiscard]] exit_code merge_verb(merge_options_asked const& asked);
/// Whether an adapter fits its base.
[[nodiscard]] exit_code check_fit(check_verb_options const& options);
/// errc::invalid_argument for the folder of an adapter, where a checkpoint is wanted.
void refuse_adapter(std::string const& folder);
[[nodiscard]] exit_code diff_verb(diff_options_asked const& asked);
[[nodiscard]] exit_code run(run_options const& options);
[[nodiscard]] exit_code verify(verify_options const& options);
[[nodiscard]] exit_code bench(bench_options const& options);
[[nodiscard]] exit_code doctor(bool json);
[[nodiscard]] exit_code demo(index_t threads, progress_mode progress);
[[nodiscard]] exit_code synth(synth_request const& request);

/// A problem that could not be run at all.
struct refusal {
  exit_code code = exit_code::ok;
  std::string name;     ///< of the error code
  std::string message;  ///< printable
};
/// body(), with what it throws as a refusal; code ok when it throws nothing.
template <class Body>
[[nodiscard]] refusal attempt(Body&& body) {
  try {
    body();
    return {};
  } catch (error const& e) {
    return {exit_code_of(e.code()), std::string(name(e.code())), printable_message(e.what())};
  } catch (std::bad_alloc const&) {
    return {exit_code::out_of_memory, "out_of_memory", "the system has no memory left"};
  } catch (std::system_error const& e) {
    // fmt throws it when standard output fails
    if (std::ferror(stdout) == 0) return {exit_code::internal, "internal", printable(e.what())};
    return {exit_code::io, "io_failure", "standard output: " + e.code().message()};
  } catch (std::exception const& e) {
    return {exit_code::internal, "internal", printable(e.what())};
  }
}

}  // namespace moe64::cli
