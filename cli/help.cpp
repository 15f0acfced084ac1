#include "help.hpp"

namespace moe64::cli::help {
namespace {

constexpr char const* keys =
    R"(Keys of a problem line (default first; docs/problem-lines.md says more):
  op           layer | quantize dequantize route plan gather grouped_gemm
               grouped_gemm_wgrad activate combine
  tokens=64 hidden=2048 inter=1536 experts=64 top_k=4
  weight       e4m3 | f32 bf16 f16 e5m2 int8 int4 mxfp4 nvfp4
  scale        block:128x128 | tensor row block:RxC group:G
  scale_dtype  f32 | bf16 f16 e8m0 e4m3
  act          silu_glu | gelu_glu gelu_tanh_glu gptoss_glu clamped_silu_glu
               step_glu silu gelu relu2
  mode         auto | w8a16 w8a8 native
  scheme       unstated | dynamic       what auto follows: activations
               quantised on the fly
  io           bf16 | f32 f16           type of activations
  layout       concatenated | interleaved
  routing      uniform | zipf one_expert sentinel:SHARE
  weight_on    output | input
  lora=0       rank of the adapters     bias=0    backward=0
  quantized=0  1: gather and activate write codes, as weight and scale say
  device       cpu | cuda:N
  seed=1       chooses the data         impl      forces an implementation
An unknown key is an error. In a file every line is a problem and # begins a
comment.
)";

constexpr char const* exit_codes = R"(Exit codes:
  0    all is well
  1    a verification failed, or a checkpoint is not sound
  2    bad input: an option, a problem line, a file that breaks its format
  3    legal, but this build or machine cannot do it
  4    not enough memory
  5    anything else: please report it
  6    a file or standard output could not be read or written, or changed
  130  interrupted
)";

}  // namespace

std::string overview() {
  return std::string(R"(
Start here:
  moe64 demo                            see it work, in a minute
  moe64 doctor                          what this machine can do, and why
  moe64 verify tokens=8 hidden=256 inter=128 experts=4 top_k=2
  moe64 bench -f bench/problems/models.txt
  moe64 inspect DIR                     what a checkpoint is
  moe64 check DIR                       read it all: what is wrong with it
  moe64 run DIR --layer 3 --tokens 64   one of its layers, checked
  moe64 convert DIR OUT --to bf16       the same model in another format
  moe64 merge DIR ADAPTER OUT --to same   with a LoRA adapter in its weights

Environment:
  MOE64_VERBOSE=1   each operation that runs, its implementation and its time
  MOE64_VERBOSE=2   also the implementations that were refused, and why

)") + exit_codes;
}

std::string inspect() {
  return std::string(R"(
Opens a checkpoint, reads its headers and configs (no weights), and prints the
model, the dialects, what is stored, every layer of experts with its formats,
which stacks no 32-bit index reaches, and everything that was found to be wrong.
With errors among the findings the exit code is 1.

Examples:
  moe64 inspect ~/models/GLM-4.7-Flash-FP8
  moe64 inspect DIR --json | jq .totals
  moe64 inspect DIR --assume block=128x128

)") + exit_codes;
}

std::string check() {
  return std::string(R"(
Reads every tensor of a checkpoint once and reports what is wrong: whatever
`inspect` finds, and NaN codes, scales that are not finite, negative, zero over
other codes or no power of two where that is declared, scales that look inverted,
NaN and infinity in plain tensors; with statistics of every expert. With errors
among the findings the exit code is 1. docs/checkpoints-check.md lists the
rules.

Examples:
  moe64 check ~/models/GLM-4.7-Flash-FP8
  moe64 check DIR --report check.html     a page with a heat map, for any browser
  moe64 check DIR --sha256                are these the files that were published?
  moe64 check DIR --json | jq '.rules'
  moe64 check DIR --layers 3-5            some layers alone
  moe64 check ADAPTER --base DIR          whether a LoRA adapter fits a checkpoint

)") + exit_codes;
}

std::string convert() {
  return std::string(R"(
Writes the checkpoint to OUT with every quantised module, expert or not, as:
  bf16, f16   numbers without scales
  fp8-block   e4m3, an f32 scale per 128x128 block (weight_scale_inv)
  fp8-row     e4m3, an f32 scale per output (weight_scale, compressed-tensors)
  same        what they are: only the files change (--shard-size)
Other tensors and side files are copied, config.json and the index are written
anew. In a checkpoint that is not quantised the fp8 targets quantise the routed
experts. Nothing stands under its name before it is whole; run the same command
again after an interruption and it goes on. Only files that convert wrote are
ever replaced or removed. Prints what became of every tensor.
Exit code 1 when the result is written but doubtful (numbers that are not
finite, errors with --unsound).

Examples:
  moe64 convert ~/models/GLM-4.7-Flash-FP8 ~/models/GLM-4.7-Flash --to bf16
  moe64 convert DIR OUT --to bf16 --dry-run      files, bytes, time; writes nothing
  moe64 convert DIR OUT --to fp8-block --memory 2GiB --shard-size 10GB
  moe64 convert DIR OUT --to bf16 --assume block=128x128 --json
  moe64 convert DIR OUT --to same --shard-size 2GB

)") + exit_codes;
}

std::string merge() {
  return std::string(R"(
Writes the checkpoint DIR to OUT with a LoRA adapter of PEFT or unsloth in its
weights: scaling * B * A is added to the numbers of each weight, experts and
others, which are rounded once to:
  bf16        numbers without scales, correctly rounded
  fp8-block   e4m3, an f32 scale per 128x128 block (weight_scale_inv)
  fp8-row     e4m3, an f32 scale per output (weight_scale, compressed-tensors)
  same        what they are: only tensors that the adapter changes are made anew
ADAPTER is a folder with adapter_config.json and adapter_model.safetensors.
Prints how much of the change is left after rounding, and warns where little is.
An adapter that does not fit, or of a kind that is not supported (DoRA, saved
modules, ...), is refused before anything is written. Run the same command again
after an interruption and it goes on, as convert does.

Examples:
  moe64 merge ~/models/GLM-4.7-Flash-FP8 adapter OUT --to bf16
  moe64 merge DIR ADAPTER OUT --to same --json | jq '.merged[] | select(.survives | not)'
  moe64 check ADAPTER --base DIR          whether it fits, without writing

)") + exit_codes;
}

std::string diff() {
  return std::string(R"(
Compares two checkpoints tensor by tensor: bytes first, then numbers after
dequantising. A weight is found whatever its name, type and layout: an expert of
a fused stack corresponds to the same expert on its own, fp8 to bf16. Prints
what is not identical. Exit code 1 when something differs by more than
--tolerance, or is only in one of them (but for scales of activations, marked *),
or when the configs differ in more than how weights are stored (marked *).

Examples:
  moe64 diff DIR-FP8 DIR-BF16 --tolerance 0.004
  moe64 diff A B --bitwise --json | jq .counts

)") + exit_codes;
}

std::string run() {
  return std::string(R"(
Loads the experts of one layer, runs them on seeded random input with seeded
random routing, and prints the times, the memory, and the distance to a plain
double-precision reference on sampled rows. Exit code 1 when that is more than
rounding explains.

Examples:
  moe64 run DIR --layer 3 --tokens 64
  moe64 run DIR --layer 3 --tokens 512 --backward --threads 8 --json
  moe64 run DIR --layer 61 --mtp --tokens 4
  moe64 run DIR --layer 3 --tokens 8192 --device cuda:0

)") + exit_codes;
}

std::string verify() {
  return std::string(R"(
Builds each problem from its seed, runs it, and compares every output with a
plain double-precision reference. Prints one line per problem: the problem, the
implementation, the worst error of each output (and the expert it belongs to),
how many rows were compared, then ok or FAIL.

Examples:
  moe64 verify tokens=16 hidden=512 inter=384 experts=8 top_k=2 backward=1
  moe64 verify "op=gather tokens=100" "op=combine tokens=100"
  moe64 verify -f bench/problems/smoke.txt --json
  moe64 verify device=cuda:0 tokens=100 backward=1
  moe64 verify --data exact op=grouped_gemm weight=int4 scale=group:32

)") + keys +
         "\n" + exit_codes;
}

std::string bench() {
  return std::string(R"(
Times each problem: a warm-up, then at least three runs and --min-time seconds,
of which the median counts; layers of up to 16 tokens take turns among 16
routings, so that their experts come from memory. Prints time, arithmetic and
memory rates, the share of the limit that binds (copying, reading or arithmetic
on registers, measured when the command starts), the rate at which weights were
streamed, workspace and peak memory. backward=1 times a layer forward and
backward; for an operation it times the gradient alone. With device=cuda:N the
time is that of the device, in replays of a CUDA graph with rests between them,
the limit a copy on it, and the peak what the problem takes there.

Examples:
  moe64 bench tokens=1
  moe64 bench "tokens=1 weight=bf16" "tokens=1 weight=e4m3" --threads 4
  moe64 bench device=cuda:0 op=gather tokens=8192 hidden=7168 top_k=8 experts=256
  moe64 bench -f bench/problems/models.txt --json > models.jsonl

)") + keys +
         "\n" + exit_codes;
}

std::string doctor() {
  return R"(
Prints version, compiler, CPU, memory, and the CUDA devices or why CUDA is off,
and for each operation the implementation that would run, on the CPU and on the
first CUDA device, and why. Send its output along with a bug report.

Examples:
  moe64 doctor
  moe64 doctor --json
)";
}

std::string synth() {
  return std::string(R"(
Writes a checkpoint of random weights that looks like a release of a real model:
its tensor names, its config, its quantised experts, everything else in bf16. It
is small, valid and the same for the same seed. --break plants one known fault,
to see that it is caught.

Examples:
  moe64 synth --list
  moe64 synth /tmp/glm --like glm-4.7-flash
  moe64 synth /tmp/ds --like deepseek-v3 --scale-down 32 --layers 4 --mtp
  moe64 synth /tmp/broken --dialect D13 --break dropped-scale

)") + exit_codes;
}

std::string demo() {
  return R"(
Runs four synthetic expert layers, compares them with the reference, times them,
and explains each in a sentence. Needs about a minute and 1 GiB of memory.
)";
}

std::string completion() {
  return R"(
Prints a program for bash, zsh or fish that completes verbs, options, their
values and files. `make install` puts it where the shells look; elsewhere, as
after pip install, the shell reads it when it starts.

Examples:
  source <(moe64 completion bash)       in ~/.bashrc
  source <(moe64 completion zsh)        in ~/.zshrc, behind compinit
  moe64 completion fish | source        in ~/.config/fish/config.fish
)";
}

std::string man() {
  return R"(
Prints moe64(1), the texts of --help as one page, for man or groff.

Examples:
  moe64 man | man -l -
)";
}

}  // namespace moe64::cli::help
