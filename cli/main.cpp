#include "CLI/CLI.hpp"
#include "arguments.hpp"
#include "command_tree.hpp"
#include "completion.hpp"
#include "failure.hpp"
#include "fmt/format.h"
#include "help.hpp"
#include "machine.hpp"
#include "man_page.hpp"
#include "moe64/version.hpp"
#include "standard_output.hpp"
#include "suggest.hpp"
#include "verbs.hpp"

#include <array>
#include <cstdio>

namespace moe64::cli {
namespace {

void add_threads(CLI::App* verb, index_t* threads) {
  add_count(verb, "--threads", threads, {1, 4096},
            "CPU threads (default: all cores this process may use)");
}

void add_progress(CLI::App* verb, progress_mode* mode) {
  verb->add_flag_callback(
      "--progress", [mode] { *mode = progress_mode::always; },
      "Draw progress bars on standard error even if it is no terminal");
}

void add_problems(CLI::App* verb, problem_options* options) {
  verb->add_option("LINE", options->lines,
                   "Problems: quote each one, or leave the quotes out when there is only one");
  verb->add_option("-f,--file", options->file, "Read problems from a file, - for standard input")
      ->type_name("FILE");
  verb->add_flag("--json", options->json, "One JSON object per problem");
  add_threads(verb, &options->threads);
  add_progress(verb, &options->progress);
}

CLI::App* add_synth(CLI::App& app, synth_request* asked) {
  auto* const verb = app.add_subcommand("synth", "Write a small random checkpoint of a real kind");
  synth_options& options = asked->options;
  verb->add_option("OUT", asked->out, "The folder to write: a new or an empty one");
  verb->add_option("--like", options.like, "The model (default glm-4.7-flash; see --list)")
      ->type_name("NAME");
  verb->add_option("--dialect", options.dialect, "D1 to D31, or plain; default: that of the model")
      ->type_name("ID");
  add_count(verb, "--scale-down", &options.scale_down, {1, 1'000'000},
            "Divides extents, layers and experts (default 16; 1: the real size)");
  add_count(verb, "--layers", &options.layers, {1, 100'000}, "Layers of the backbone");
  add_seed(verb, &options.seed, "Chooses the numbers (default 1)");
  add_bytes(verb, "--shard-size", &options.shard_bytes,
            "About the bytes of a file (default: a third of all)");
  verb->add_flag("--mtp", options.mtp, "With a layer of multi-token prediction");
  verb->add_option("--break", options.fault, "Plant one fault; see --list")->type_name("KIND");
  verb->add_flag("--list", asked->list, "Print the names of models and faults");
  verb->add_flag("--json", asked->json, "One JSON object");
  add_threads(verb, &asked->threads);
  add_progress(verb, &asked->progress);
  verb->footer(help::synth());
  return verb;
}

void add_checkpoint(CLI::App* verb, folder_options* options) {
  verb->add_option("DIR", options->folder, "A folder with safetensors files, or one such file")
      ->required();
  verb->add_option("--assume", options->how.assume,
                   "State what the files leave open or say wrongly, such as block=128x128; may be "
                   "repeated (docs/checkpoints.md)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  verb->add_flag("--lenient", options->how.lenient, "Accept unknown fields in file headers");
  verb->add_flag("--follow-links", options->how.follow_links,
                 "Follow any symbolic link, not only those of a Hub cache");
  verb->add_flag("--json", options->json, "One JSON object");
}

void add_part(CLI::App* verb, checkpoint_part* part, char const* layers, char const* shards) {
  verb->add_option_function<std::string>(
          "--layers",
          [=](std::string const& text) { part->layers = parse_ranges(text, "--layers"); }, layers)
      ->type_name("LIST");
  verb->add_option_function<std::string>(
          "--shards",
          [=](std::string const& text) { part->shards = parse_ranges(text, "--shards"); }, shards)
      ->type_name("LIST");
}

void add_convert(CLI::App* verb, convert_options_asked* asked) {
  add_checkpoint(verb, asked);
  verb->add_option("OUT", asked->out, "The folder to write to: new, empty, or begun before")
      ->required();
  constexpr std::array targets = {convert_target::bf16, convert_target::f16,
                                  convert_target::fp8_block, convert_target::fp8_row,
                                  convert_target::same};
  std::vector<std::string> words;
  for (convert_target const target : targets) words.emplace_back(name(target));
  add_word(
      verb, "--to", words, [=](std::size_t i) { asked->what.to = targets[i]; },
      "What quantised weights become; same: stay")
      ->required();
  add_bytes(verb, "--memory", &asked->what.memory_bytes, "Memory for buffers (default 512MiB)");
  add_bytes(verb, "--shard-size", &asked->what.shard_bytes,
            "Tensors of one file; a larger tensor is alone (default 5GB)");
  add_part(verb, &asked->what.part, "Write no more than these layers, such as 0-5,9",
           "Write no more than the tensors of these files of DIR, counted from 1");
  verb->add_flag("--unsound", asked->what.unsound,
                 "Convert what is understood of a checkpoint that is not sound");
  add_file(verb, "--coverage", &asked->coverage, "Write what became of every tensor to a file");
  verb->add_flag("--dry-run", asked->dry_run, "Print what would be written, and write nothing")
      ->excludes("--coverage");
  add_threads(verb, &asked->threads);
  add_progress(verb, &asked->progress);
  verb->footer(help::convert());
}

CLI::Option* add_adapter_layout(CLI::App* verb, adapter_layout* layout) {
  return add_word(
      verb, "--lora-layout", {"peft", "unsloth"},
      [=](std::size_t i) { *layout = i == 0 ? adapter_layout::peft : adapter_layout::unsloth; },
      "How B of stacks of experts is laid out, where the adapter does not say it");
}

void add_merge(CLI::App* verb, merge_options_asked* asked) {
  add_checkpoint(verb, asked);
  verb->add_option("ADAPTER", asked->adapter, "A LoRA adapter: the folder that PEFT saved")
      ->required();
  verb->add_option("OUT", asked->out, "The folder to write to: new, empty, or begun before")
      ->required();
  constexpr std::array targets = {convert_target::bf16, convert_target::fp8_block,
                                  convert_target::fp8_row, convert_target::same};
  std::vector<std::string> words;
  for (convert_target const target : targets) words.emplace_back(name(target));
  add_word(
      verb, "--to", words, [=](std::size_t i) { asked->what.to = targets[i]; },
      "What quantised weights become; same: stay")
      ->required();
  add_adapter_layout(verb, &asked->what.layout);
  add_bytes(verb, "--memory", &asked->what.memory_bytes, "Memory for buffers (default 512MiB)");
  add_bytes(verb, "--shard-size", &asked->what.shard_bytes,
            "Tensors of one file; a larger tensor is alone (default 5GB)");
  add_threads(verb, &asked->threads);
  add_progress(verb, &asked->progress);
  verb->footer(help::merge());
}

void add_diff(CLI::App* verb, diff_options_asked* asked) {
  add_checkpoint(verb, asked);
  verb->add_option("OTHER", asked->other, "The checkpoint to compare with")->required();
  add_number(verb, "--tolerance", &asked->what.tolerance, number_kind::zero_or_more,
             "Allowed distance, as a share of the tensor's largest number (default 0)")
      ->type_name("SHARE");
  verb->add_flag("--bitwise", asked->what.bitwise,
                 "Equal numbers that are stored differently count as different");
  add_part(verb, &asked->what.part, "Compare no more than these layers, such as 0-5,9",
           "Compare no more than these files of DIR, counted from 1");
  add_count(verb, "--shown", &asked->shown, {}, "Tensors that are listed (default 40)");
  add_threads(verb, &asked->threads);
  add_progress(verb, &asked->progress);
  verb->footer(help::diff());
}

CLI::App* add_completion(CLI::App& app, shell* asked) {
  auto* const verb = app.add_subcommand("completion", "Print shell completion for this tool");
  add_word(
      verb, "SHELL", {"bash", "zsh", "fish"},
      [asked](std::size_t i) {
        constexpr std::array shells = {shell::bash, shell::zsh, shell::fish};
        *asked = shells[i];
      },
      "Which shell")
      ->required();
  verb->footer(help::completion());
  return verb;
}

constexpr char const* budget_text =
    "Multiply-adds of the reference before it samples rows (default 1e9)";

exit_code run_tool(std::vector<std::string> const& words) {
  CLI::App app{"moe64 runs expert layers of mixture-of-experts models from quantised weights."};
  app.name("moe64");
  app.footer(help::overview());
  app.set_version_flag("--version", fmt::format("moe64 {}", version()), "Print the version");
  app.require_subcommand(1);

  verify_options verify_asked;
  bench_options bench_asked;
  verify_asked.threads = bench_asked.threads = usable_cores();
  index_t demo_threads = usable_cores();
  progress_mode demo_progress = progress_mode::automatic;
  bool doctor_json = false;

  folder_options inspect_asked;
  check_verb_options check_asked;
  run_options run_asked;
  check_asked.threads = run_asked.threads = usable_cores();

  auto* const inspect_verb =
      app.add_subcommand("inspect", "Say what a checkpoint is, and what is wrong with it");
  add_checkpoint(inspect_verb, &inspect_asked);
  inspect_verb->footer(help::inspect());

  auto* const check_verb =
      app.add_subcommand("check", "Read a checkpoint to the last byte and say what is wrong");
  add_checkpoint(check_verb, &check_asked);
  add_threads(check_verb, &check_asked.threads);
  add_progress(check_verb, &check_asked.progress);
  add_file(check_verb, "--report", &check_asked.report,
           "Also write one HTML page with a heat map of layers and experts");
  add_part(check_verb, &check_asked.part, "Read no more than these layers, such as 0-5,9",
           "Read no more than these files, counted from 1 in order of their names");
  check_verb->add_flag("--sha256", check_asked.sha256,
                       "Also compare each file with the sum that the Hub's client left beside it");
  auto* const base_option = add_file(check_verb, "--base", &check_asked.base,
                                     "DIR is a LoRA adapter: say whether it fits this checkpoint");
  base_option->type_name("DIR")
      ->excludes("--report")
      ->excludes("--layers")
      ->excludes("--shards")
      ->excludes("--sha256");
  add_adapter_layout(check_verb, &check_asked.adapter)->needs(base_option);
  check_verb->footer(help::check());

  convert_options_asked convert_asked;
  convert_asked.threads = usable_cores();
  auto* const convert_command =
      app.add_subcommand("convert", "Write a checkpoint in another format");
  add_convert(convert_command, &convert_asked);

  merge_options_asked merge_asked;
  merge_asked.threads = usable_cores();
  auto* const merge_command =
      app.add_subcommand("merge", "Write a checkpoint with a LoRA adapter in its weights");
  add_merge(merge_command, &merge_asked);

  diff_options_asked diff_asked;
  diff_asked.threads = usable_cores();
  auto* const diff_command = app.add_subcommand("diff", "Compare two checkpoints");
  add_diff(diff_command, &diff_asked);

  auto* const run_verb = app.add_subcommand("run", "Run one layer of a checkpoint");
  add_checkpoint(run_verb, &run_asked);
  add_threads(run_verb, &run_asked.threads);
  add_progress(run_verb, &run_asked.progress);
  add_count(run_verb, "--layer", &run_asked.layer, {}, "Which layer, as the files number it")
      ->required();
  run_verb->add_flag("--mtp", run_asked.mtp, "A layer of multi-token prediction");
  add_count(run_verb, "--tokens", &run_asked.tokens, {1}, "Input rows (default 64)")
      ->type_name("T");
  add_count(run_verb, "--top-k", &run_asked.top_k, {1},
            "Experts of each token (default: what the config states)")
      ->type_name("K");
  add_seed(run_verb, &run_asked.seed, "Chooses input and routing (default 1)");
  run_verb->add_flag("--backward", run_asked.backward,
                     "Then the gradients of the input and of the slot weights");
  run_verb->add_option("--device", run_asked.device, "Where it runs: cpu or cuda:N (default cpu)")
      ->type_name("D");
  add_number(run_verb, "--budget", &run_asked.budget, number_kind::above_zero, budget_text);
  run_verb->footer(help::run());

  auto* const verify_verb = app.add_subcommand("verify", "Compare problems with the reference");
  add_problems(verify_verb, &verify_asked);
  add_word(
      verify_verb, "--data", {"random", "exact"},
      [&](std::size_t i) {
        verify_asked.data = i == 0 ? cases::data_mode::random : cases::data_mode::exact;
      },
      "random: realistic numbers within a bound; exact: small integers, equal bits");
  add_number(verify_verb, "--budget", &verify_asked.budget, number_kind::above_zero, budget_text);
  verify_verb->footer(help::verify());

  auto* const bench_verb = app.add_subcommand("bench", "Time problems");
  add_problems(bench_verb, &bench_asked);
  add_number(bench_verb, "--min-time", &bench_asked.min_seconds, number_kind::above_zero,
             "Seconds to measure (default 0.5)")
      ->type_name("S");
  bench_verb->footer(help::bench());

  auto* const doctor_verb = app.add_subcommand("doctor", "Say what runs here, and why");
  doctor_verb->add_flag("--json", doctor_json, "One JSON object");
  doctor_verb->footer(help::doctor());

  auto* const demo_verb = app.add_subcommand("demo", "See it work");
  add_threads(demo_verb, &demo_threads);
  add_progress(demo_verb, &demo_progress);
  demo_verb->footer(help::demo());

  synth_request synth_asked;
  synth_asked.threads = usable_cores();
  auto* const synth_verb = add_synth(app, &synth_asked);

  shell completion_asked = shell::bash;
  auto* const completion_verb = add_completion(app, &completion_asked);

  auto* const man_verb = app.add_subcommand("man", "Print the manual page");
  man_verb->footer(help::man());

  app.add_subcommand("version", "Print the version");

  auto const refuse = [&](std::string const& text) {
    report_failure({exit_code::usage, "invalid_argument", printable(text)}, json_asked(words));
    fmt::print(stderr, "Run with --help for more information.\n");
    return exit_code::usage;
  };
  if (std::string const wrong = unknown_word(app, words); !wrong.empty()) return refuse(wrong);
  try {
    std::vector<std::string> reversed(words.rbegin(), words.rend());  // it takes them from the end
    app.parse(reversed);
  } catch (CLI::ParseError const& e) {
    if (e.get_exit_code() != 0) return refuse(e.what());
    app.exit(e);  // --help, --version
    return exit_code::ok;
  }
  if (inspect_verb->parsed()) return inspect(inspect_asked);
  if (check_verb->parsed()) {
    return check_asked.base.empty() ? check(check_asked) : check_fit(check_asked);
  }
  if (run_verb->parsed()) return run(run_asked);
  if (convert_command->parsed()) return convert_verb(convert_asked);
  if (merge_command->parsed()) return merge_verb(merge_asked);
  if (diff_command->parsed()) return diff_verb(diff_asked);
  if (verify_verb->parsed()) return verify(verify_asked);
  if (bench_verb->parsed()) return bench(bench_asked);
  if (doctor_verb->parsed()) return doctor(doctor_json);
  if (demo_verb->parsed()) return demo(demo_threads, demo_progress);
  if (synth_verb->parsed()) return synth(synth_asked);
  if (completion_verb->parsed()) {
    fmt::print("{}", completion(tree_of(app), completion_asked));
  } else if (man_verb->parsed()) {
    fmt::print("{}", man_page(tree_of(app), version()));
  } else {
    fmt::print("moe64 {}\n", version());
  }
  return exit_code::ok;
}

}  // namespace
}  // namespace moe64::cli

int main(int argc, char** argv) {
  using namespace moe64::cli;
  occupy_standard_descriptors();
  exit_code code = exit_code::internal;
  std::vector<std::string> const words(argv + 1, argv + argc);
  auto const refused = attempt([&] { code = run_tool(words); });
  bool const failed = refused.code != exit_code::ok;
  bool const on_output = !failed || (json_asked(words) && !result_was_sent());
  if (failed) {
    report_failure(refused, on_output);
    code = refused.code;
  }
  if (auto const why = on_output ? output_failure() : std::string(); !why.empty()) {
    fmt::print(stderr, "moe64: {}\n", why);
    code = exit_code::io;  // whatever was found, nobody was told
  }
  return static_cast<int>(code);
}
