"""scripts/check_tree passes a clean tree, and reports each planted violation with its rule, file and line."""

import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CHECK_TREE = Path(__file__).resolve().parents[2] / "scripts" / "check_tree"
OPERATIONS = "quantize route plan gather grouped_gemm activate combine".split()

CLEAN = {
    "ARCHITECTURE.md": "# Map\n\n`include/` `src/core/` `src/ops/` `src/cpu/` `src/backend.hpp` and `src/`\n",
    "README.md": "# Read me\n\n## The two commands\n\n[map](ARCHITECTURE.md) [here](#the-two-commands)\n"
                 "[web](https://example.org) `[code](nowhere.md)`\n\n```\n[fenced](nowhere.md)\n```\n",
    "include/moe64/index.hpp": "#include <cstdint>\nint f(long n) { return static_cast<int>(n); }\n",
    "include/moe64/tensor.hpp": '#include <stdint.h>\n#include "moe64/index.hpp"\n',
    "src/core/error.hpp": '#include "moe64/index.hpp"\n#include <fmt/format.h>\n',
    "src/core/float8.hpp": "unsigned g(long n) { return unsigned(n); }\n",
    "src/backend.hpp": '#include "core/error.hpp"\n',
    **{f"src/ops/{name}.cpp": '#include "backend.hpp"\n#include "core/error.hpp"\n' for name in OPERATIONS},
    **{f"src/cpu/{name}.cpp": '#include "backend.hpp"\n#include <immintrin.h>\n' for name in OPERATIONS},
}


class CheckTreeTest(unittest.TestCase):
    def setUp(self):
        self.root = Path(tempfile.mkdtemp(prefix="check_tree_"))
        self.addCleanup(shutil.rmtree, self.root)
        for name, text in CLEAN.items():
            self.write(name, text)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def on_map(self, *rooms):
        self.write("ARCHITECTURE.md", CLEAN["ARCHITECTURE.md"] + " ".join(f"`{room}`" for room in rooms) + "\n")

    def check(self):
        """(exit status, [(file, line, rule)])"""
        done = subprocess.run([sys.executable, "-B", CHECK_TREE, "--root", self.root], capture_output=True, text=True)
        self.assertEqual(done.stderr, "")
        found = re.findall(r"^(.+?):(\d+): \[(\w+)\] \S", done.stdout, re.M)
        return done.returncode, [(file, int(line), rule) for file, line, rule in found]

    def assert_clean(self):
        self.assertEqual(self.check(), (0, []))

    def assert_caught(self, *violations):
        self.assertEqual(self.check(), (1, sorted(violations)))

    def test_a_clean_tree_passes(self):
        self.assert_clean()

    # --- arrows ---

    def test_public_header_including_a_library(self):
        for library in ["fmt/format.h", "nlohmann/json.hpp", "cuda_runtime.h", "torch/torch.h", "Python.h"]:
            with self.subTest(library):
                self.write("include/moe64/tensor.hpp", f"#include <cstdint>\n#include <{library}>\n")
                self.assert_caught(("include/moe64/tensor.hpp", 2, "arrows"))

    def test_arrows_that_point_back(self):
        backwards = [
            ("src/core/a.cpp", "backend.hpp"),
            ("src/backend.hpp", "ops/a.hpp"),
            ("src/ops/a.cpp", "cpu/a.hpp"),
            ("src/ops/a.cpp", "layer/a.hpp"),
            ("src/layer/a.cpp", "backend.hpp"),
            ("src/layer/a.cpp", "cpu/a.hpp"),
            ("src/layer/a.cpp", "../cpu/a.hpp"),
            ("src/cpu/a.cpp", "ops/a.hpp"),
            ("src/cuda/a.cpp", "cpu/a.hpp"),
            ("src/checkpoint/a.cpp", "layer/a.hpp"),
            ("src/oracle/a.cpp", "core/error.hpp"),
            ("src/parallel/a.cpp", "ops/a.hpp"),
            ("src/capi/a.cpp", "oracle/a.hpp"),
            ("cli/a.cpp", "core/error.hpp"),
            ("examples/a.cpp", "core/error.hpp"),
        ]
        self.on_map("src/layer/", "src/cuda/", "src/checkpoint/", "src/oracle/", "src/parallel/", "src/capi/", "cli/",
                    "examples/")
        for room in ["ops", "cpu", "layer", "oracle"]:
            self.write(f"src/{room}/a.hpp", "\n")
        for name in OPERATIONS:
            self.write(f"src/cuda/{name}.cpp", "\n")
        self.assert_clean()
        for name, header in backwards:
            with self.subTest(f"{name} -> {header}"):
                before = CLEAN.get(name)
                self.write(name, f'#include <vector>\n// a comment\n#include "{header}"\n')
                self.assert_caught((name, 3, "arrows"))
                self.write(name, before or "\n")

    def test_arrows_that_point_on(self):
        self.on_map("src/layer/", "src/oracle/", "cli/", "tests/")
        self.write("src/layer/a.hpp", "\n")
        self.write("src/layer/a.cpp", '#include "layer/a.hpp"\n#include "moe64/tensor.hpp"\n#include <sstream>\n')
        self.write("src/oracle/a.hpp", "#include <moe64/tensor.hpp>\n")
        self.write("cli/a.cpp", '#include "oracle/a.hpp"\n#include <CLI/CLI.hpp>\n')
        self.write("tests/a_test.cpp", '#include "core/error.hpp"\n#include "layer/a.hpp"\n')
        self.write("src/backend.cpp", '#include "backend.hpp"\n')
        self.assert_clean()

    def test_commented_include_is_no_include(self):
        self.write("src/core/a.hpp", '// #include "backend.hpp"\n/*\n#include "backend.hpp"\n*/\n')
        self.assert_clean()

    def test_fmt_in_a_cuda_file(self):
        self.on_map("src/cuda/")
        for name in OPERATIONS:
            self.write(f"src/cuda/{name}.cpp", "#include <cuda_runtime.h>\n#include <fmt/format.h>\n")
        self.assert_clean()
        self.write("src/cuda/a.cu", "#include <fmt/format.h>\n")
        self.assert_caught(("src/cuda/a.cu", 1, "arrows"))

    def test_header_that_nobody_knows(self):
        self.write("src/core/a.cpp", '#include "core/missing.hpp"\n')
        self.assert_caught(("src/core/a.cpp", 1, "arrows"))

    def test_room_that_nobody_knows(self):
        self.on_map("src/attic/")
        self.write("src/attic/a.cpp", "\n")
        self.assert_caught(("src/attic/a.cpp", 1, "arrows"))

    # --- sizes ---

    def test_file_that_is_too_long(self):
        self.on_map("tests/", "scripts/", "src/cuda/")
        for name in OPERATIONS:
            self.write(f"src/cuda/{name}.cpp", "\n")
        for name, limit in [("src/core/a.cpp", 400), ("include/moe64/a.hpp", 400), ("scripts/tool", 400),
                            ("src/cuda/kernels/a.cuh", 450), ("tests/a_test.cpp", 600), ("tests/a_test.py", 600)]:
            with self.subTest(name):
                self.write(name, "\n" * limit)
                self.assert_clean()
                self.write(name, "\n" * (limit + 1))
                self.assert_caught((name, limit + 1, "sizes"))
                self.write(name, "\n")

    # --- crowds ---

    def test_folder_with_too_many_files(self):
        present = sum(name.rpartition("/")[0] == "src/core" for name in CLEAN)
        for i in range(22 - present):
            self.write(f"src/core/a{i}.hpp", "\n")
        self.write("src/core/notes.md", "no code\n")
        self.write("src/core/deeper/a.hpp", "\n")
        self.assert_clean()
        self.write("src/core/one_more.cpp", "\n")
        self.assert_caught(("src/core", 1, "crowds"))

    # --- narrowing ---

    def test_narrowing_casts(self):
        for cast in ["static_cast<int>(n)", "static_cast<std::int32_t>(n)", "static_cast<int32_t>(n)",
                     "static_cast< unsigned >(n)", "static_cast<unsigned int>(n)", "static_cast<uint32_t>(n)",
                     "static_cast<std::uint32_t>(n)", "(int)n", "(int) n", "(unsigned)n", "(int32_t)(n + 1)",
                     "int(n)", "unsigned(n)", "std::uint32_t(n)", "x + (int)n", "f((int)n)",
                     "static_cast<int>(a::n + m)", "static_cast<int>(std::size(v))"]:
            with self.subTest(cast):
                self.write("src/core/a.cpp", f"\nauto f(long n) {{\n  return {cast};\n}}\n")
                self.assert_caught(("src/core/a.cpp", 3, "narrowing"))

    def test_what_only_looks_like_a_narrowing_cast(self):
        for line in ["static_cast<std::int64_t>(n)", "void f(int);", "void f(int) const;", "int f(int) noexcept;",
                     "std::function<int(int)> f;", "int (*f)(long);", "auto n = sizeof(int) * 4;", "print(n);",
                     "// static_cast<int>(n)", '"static_cast<int>(n)"', "point(n)", "int n{};", "mint(n)",
                     "static_cast<int>(errc::internal)", "static_cast<int>(moe64::errc::internal)"]:
            with self.subTest(line):
                self.write("src/core/a.cpp", line + "\n")
                self.assert_clean()

    def test_excused_narrowing_needs_a_reason(self):
        self.write("src/core/a.cpp", "int f(long n) { return static_cast<int>(n); }  // narrow-ok: n is a digit\n")
        self.assert_clean()
        self.write("src/core/a.cpp", "int f(long n) { return static_cast<int>(n); }  // narrow-ok:\n")
        self.assert_caught(("src/core/a.cpp", 1, "narrowing"))

    def test_narrowing_is_free_outside_the_library(self):
        self.on_map("tests/")
        self.write("tests/a_test.cpp", "int f(long n) { return static_cast<int>(n); }\n")
        self.assert_clean()

    # --- links ---

    def test_links_that_do_not_resolve(self):
        for target in ["missing.md", "src/missing/", "ARCHITECTURE.md#missing", "#missing", "../outside.md",
                       "/etc/passwd"]:
            with self.subTest(target):
                self.write("docs.md", f"# Docs\n\ntext\n[link]({target})\n")
                self.assert_caught(("docs.md", 4, "links"))
        self.write("docs.md", "# Docs\n\n[ref]: missing.md\n")
        self.assert_caught(("docs.md", 3, "links"))

    def test_links_that_resolve(self):
        self.write("docs.md", "# Docs\n\n## A `b`: c, d\n\n## Same\n\n## Same\n\n[a](#a-b-c-d) [b](#same-1)\n"
                              "[c](README.md#the-two-commands) [d](src/core/) [e][ref]\n\n[ref]: README.md 'title'\n")
        self.assert_clean()

    # --- rooms, operations, folders ---

    def test_room_that_is_not_on_the_map(self):
        self.write("src/layer/a.cpp", "\n")
        self.assert_caught(("ARCHITECTURE.md", 1, "rooms"))
        self.on_map("src/layer/")
        self.assert_clean()
        self.write("bench/a.cpp", "\n")
        self.assert_caught(("ARCHITECTURE.md", 1, "rooms"))

    def test_map_is_missing(self):
        (self.root / "ARCHITECTURE.md").unlink()
        self.write("README.md", "# Read me\n")
        self.assert_caught(("ARCHITECTURE.md", 1, "rooms"))

    def test_operation_without_its_file(self):
        for room in ["ops", "cpu"]:
            for name in OPERATIONS:
                with self.subTest(f"{room}/{name}"):
                    path = f"src/{room}/{name}.cpp"
                    (self.root / path).unlink()
                    self.assert_caught((path, 1, "operations"))
                    self.write(path, CLEAN[path])

    def test_operation_without_its_file_in_cuda(self):
        self.on_map("src/cuda/")
        self.write("src/cuda/route.cu", "\n")
        self.assert_caught(*[(f"src/cuda/{name}.cpp", 1, "operations") for name in OPERATIONS if name != "route"])

    def test_folders_that_say_nothing(self):
        for folder in ["utils", "common", "detail"]:
            with self.subTest(folder):
                self.write(f"src/core/{folder}/a.hpp", "\n")
                self.assert_caught((f"src/core/{folder}", 1, "folders"))
                shutil.rmtree(self.root / "src/core" / folder)

    # --- words, cuda ---

    def test_forbidden_words(self):
        for word in ["TO" "DO", "FIX" "ME: later", "X" "XX", "see /wo" "rk/a", "'/ro" "ot/x'", "/ho" "me/me/x"]:
            with self.subTest(word):
                self.write("src/core/a.cpp", f"\n// {word}\n")
                self.assert_caught(("src/core/a.cpp", 2, "words"))

    def test_words_that_the_field_has_others_for(self):
        for word in ["the copy engine", "Blocks of threads", "a block of threads", "two groups of four warps", "codes by codes",
                     "numbers by codes", "weights are the left operand", "rows that are left over", "second-level cache",
                     "blocks that stay", "stores taken apart", "what it reckons", "a stand-in", "on the card",
                     "wgmma_decode", "a left_fragment"]:
            with self.subTest(word):
                self.write("src/core/a.cpp", f"\n// {word}\n")
                self.assert_caught(("src/core/a.cpp", 2, "words"))
                self.write("src/core/a.cpp", "")
                self.write("README.md", CLEAN["README.md"] + word + "\n")
                self.assert_caught(("README.md", CLEAN["README.md"].count("\n") + 1, "words"))
                self.write("README.md", CLEAN["README.md"])

    def test_records_of_runs_keep_their_words(self):
        self.on_map("bench/")
        self.write("bench/results/gpu.md", "wgmma_decode on this card\n")
        self.assert_clean()

    def test_words_that_only_look_forbidden(self):
        self.write("src/core/b.cpp", "// discards, wildcard, code by code, a group of experts, a block of 128 rows\n")
        self.write("src/core/a.cpp", "// mktemp name.X" "XXXXX, frame" "wo" "rk/a, out/wo" "rk/a, ${dir}/ro" "ot/x\n")
        self.assert_clean()

    def test_cuda_calls_in_other_places_than_theirs(self):
        self.on_map("src/cuda/", "cli/", "tests/")
        for name in OPERATIONS:
            self.write(f"src/cuda/{name}.cpp", "\n")
        runtime, device = "src/cuda/cuda_runtime.cpp", "src/cuda/runtime/device.cpp"
        known = [runtime, "tests/cuda/a.cpp"]
        cases = [("kernel<<<1, 1>>>();", []), ("cudaSetDevice(0);", known), ("cudaMallocAsync(&p, n, s);", known),
                 ("cudaStream_t s;", known),
                 ("table.set_device(0);", [runtime, device, "tests/cuda_host/mock.cpp"])]
        for call, places in cases:
            for place in [runtime, device, "src/cuda/runtime/launch.cpp", "src/cuda/kernels/a.cu", "cli/a.cpp",
                          "tests/cuda/a.cpp", "tests/cuda_host/mock.cpp"]:
                with self.subTest(f"{call} in {place}"):
                    self.write(place, f"// {call}\n")
                    self.assert_clean()
                    self.write(place, f"\n{call}\n")
                    if place in places:
                        self.assert_clean()
                    else:
                        self.assert_caught((place, 2, "cuda"))
                    self.write(place, "\n")

    def test_kernels_without_a_head(self):
        self.on_map("src/cuda/")
        for name in OPERATIONS:
            self.write(f"src/cuda/{name}.cpp", "\n")
        place = "src/cuda/kernels/a.cu"
        head = ["/// Computes: y.", "/// Grid: a CTA for each of", "///   the rows.", "/// Threads: 256.",
                "/// Shared memory: none.", "/// Limits: none."]
        for kernel in (["__global__ void f() {}"], ["template <class X,", "          class Y>", "__global__ void f() {}"]):
            self.write(place, "\n".join(["", *head, *kernel, ""]))
            self.assert_clean()
            self.write(place, "\n".join(["", *head, *kernel, ""]).replace("Threads", "Warp roles"))
            self.assert_clean()
            for gone in (0, 1, 3, 4, 5):
                self.write(place, "\n".join(["", *head[:gone], *head[gone + 1:], *kernel, ""]))
                self.assert_caught((place, len(head) + len(kernel), "heads"))
        self.write(place, "/// Computes: x.\n\n__global__ void f() {}\n")
        self.assert_caught(*[(place, 3, "heads")] * 5)


if __name__ == "__main__":
    unittest.main()
