"""What the targets of the Makefile that have many steps consist of."""

import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Step:
    name: str        # of the step and of its log
    says: str        # what happens now
    command: list
    hint: str        # what to do when it fails
    kind: str = "plain"  # plain, ninja, ctest, pytest; shown: its output is what the user wants to see
    folder: str = ""     # of the build, for ninja and ctest
    targets: list = field(default_factory=list)  # for ninja
    results: str = "results.xml"  # for ctest: JUnit's format, in the folder
    environment: dict = field(default_factory=dict)
    background: bool = False  # begins after the first step, and is awaited where it stands


@dataclass
class Plan:
    steps: list
    table: bool = True  # what took how long, at the end
    then: object = None  # what to say at the very end


MEND = "mend it and run the same again: what is compiled stays"


def set_up(*groups):
    return Step("set-up", "Debian packages and headers that are missing", ["scripts/setup.sh", *groups],
                "look at what the package manager says; scripts/setup.sh " + " ".join(groups) + " repeats this step")


def configure(preset):
    return Step(f"configure {preset}", f"CMake into build/{preset}", ["cmake", "--preset", preset],
                "the message above names what is missing; `make clean` starts from nothing")


def build(preset, jobs, *targets, says):
    folder = f"build/{preset}"
    return Step(f"build {preset}", says, ["ninja", "-C", folder, "-j", jobs, *targets], MEND, "ninja", folder,
                list(targets))


def suites(preset, jobs, *options, says, folder=""):
    """What a test preset runs; `folder` where its build has another name."""
    folder = folder or f"build/{preset}"
    command = ["ctest", "--preset", preset, "--parallel", jobs, "--output-junit", Step.results, *options]
    return Step(f"test {preset}", says, command,
                f"one test again: ctest --test-dir {folder} -R NAME --output-on-failure", "ctest", folder)


def python_packages():
    return Step("Python packages", "PyTorch and Transformers into .venv (6 GB; does nothing when they are there)",
                ["make", "--no-print-directory", ".venv-tests"],
                "`make python` repeats it; with no network at all, everything before this step still holds",
                background=True)


def python_lint():
    return made("python-lint", "ruff and mypy over the Python package",
                "each line above names a file and a rule; pyproject.toml says which are on; `make python-lint` repeats it")


def python_suite(jobs):
    return Step("test Python", "the Python package, with PyTorch, Transformers and PEFT",
                [".venv/bin/python", "-B", "-m", "pytest", "-q", "-n", jobs, "--dist", "loadfile",
                 *shlex.split(os.environ.get("PYTEST_ARGS", ""))],
                "one test again: .venv/bin/python -m pytest -k NAME", "pytest",
                environment={"MOE64_TOOL": str(ROOT / "build/release/bin/moe64"),
                             "OMP_NUM_THREADS": "1"})


def tree():
    return Step("tree", "the rules of the repository", ["scripts/check_tree"], "each line above names a file and its rule")


def has_gpu():
    """NVIDIA's driver, also below WSL."""
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg"))


def demo(jobs):
    return Plan([
        set_up("build"),
        configure("release"),
        build("release", jobs, "moe64_cpu_cli", says="the tool, for the CPU: no kernel is compiled"),
        Step("story", "an FP8 checkpoint, from its making to a broken one that is caught",
             ["scripts/demo.sh", "build/release/bin/moe64-cpu"], "the command above did not end as it should", "shown"),
    ], table=False, then="This machine has a GPU: `make build` builds moe64 for it, then `build/release/bin/moe64 doctor`."
       if has_gpu() else None)


def quick(jobs):
    return Plan([
        set_up("build", "fmt"),
        tree(),
        Step("format", "clang-format", ["make", "--no-print-directory", "fmt-check"], "`make fmt` formats"),
        configure("release"),
        build("release", jobs, "moe64_host_suite", says="unit tests and fuzz targets of the host; no kernel"),
        suites("release", jobs, "-R", "^(unit|fuzz)[.]", says="the unit suite of the host"),
    ])


def test(jobs):
    return Plan([
        set_up("build", "cuda", "bench"),
        tree(),
        configure("release"),
        build("release", jobs, says="library, tool and tests; the kernels where nvcc is"),
        suites("release", jobs, says="all suites but the exhaustive ones"),
        configure("asan"),
        build("asan", jobs, "moe64_unit_suite", says="the unit suite once more, for the sanitizers"),
        suites("asan", jobs, says="under the address and undefined-behaviour sanitizers"),
        python_packages(),
        python_lint(),
        python_suite(jobs),
    ])


def made(target, says, hint):
    """A target of the Makefile that is one step."""
    return Step(target, says, ["make", "--no-print-directory", target], hint)


def test_all(jobs):
    """What `make test` leaves out."""
    return Plan([
        set_up("build", "cuda", "bench"),
        configure("release"),
        build("release", jobs, "moe64_slow", says="the exhaustive suite"),
        suites("exhaustive", jobs, says="the exhaustive suite", folder="build/release"),
        configure("asan-whole"),
        build("asan-whole", jobs, "moe64_unit_suite", says="the unit suite for the address and undefined-behaviour sanitizers"),
        suites("asan-whole", jobs, says="the whole unit suite, its own code and the oracle under sanitizers, too"),
        configure("tsan"),
        build("tsan", jobs, "moe64_unit_suite", "moe64_property", says="unit and property suites for the thread sanitizer"),
        suites("tsan", jobs, says="under the thread sanitizer"),
        made("mutation", "plants known bugs one by one; the suites must catch each", "a line that says SURVIVED names a bug "
             "that no test sees"),
        made("interop", "files and models exchanged with Transformers and compressed-tensors", MEND),
    ])


def release(jobs):
    return Plan([
        set_up("build", "cuda", "bench"),
        configure("every-gpu"),
        build("every-gpu", jobs, says="library and tool, with machine code for every GPU"),
        made("wheel", "the Python wheel, with the same code, tried in an empty environment", MEND),
    ])


PLANS = {"demo": demo, "quick": quick, "test": test, "test-all": test_all, "release": release}


def names():
    return list(PLANS)


def plan(name, jobs):
    return PLANS[name](jobs)
