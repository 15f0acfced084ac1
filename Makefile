# The phone book of moe64: every task has one name, and does its own set-up.

JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
BENCH_SUITE ?= bench/problems/models.txt
BENCH_ARGS ?=
PYTEST_ARGS ?=
WHEEL_ARCHITECTURES ?= ALL
TOOL := build/release/bin/moe64
SOURCES = $(shell git ls-files -co --exclude-standard -- '*.hpp' '*.cpp' '*.h' '*.c' '*.cu' '*.cuh')

# preset(name): configure and build it
preset = cmake --preset $(1) && cmake --build --preset $(1) --parallel $(JOBS)
# STEPS target: scripts/steps, once there is an interpreter for it
STEPS = command -v python3 >/dev/null || scripts/setup.sh build; JOBS=$(JOBS) PYTEST_ARGS="$(PYTEST_ARGS)" scripts/steps
# suite(label): the tests of one label, on the release build
suite = ctest --test-dir build/release --output-on-failure --no-tests=error --parallel $(JOBS) -L '^$(1)$$'

.DEFAULT_GOAL := help
.PHONY: help setup build build-all dev demo quick test test-all release test-asan tsan gradient property huge slow mutation bench bench-problems \
        bench-checkpoint bench-gpu sanitize-gpu interop python python-lint python-latest wheel docs .venv .venv-tests tidy fmt fmt-check fuzz check-tree install clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install the Debian packages that are missing (does nothing when all are there)
	@scripts/setup.sh build

build: setup ## build the library and the tool, with the CUDA backend where nvcc is: build/release/bin/moe64
	@scripts/setup.sh cuda
	$(call preset,release) --target moe64 moe64_cli

build-all: setup
	@scripts/setup.sh cuda
	$(call preset,release)

dev: setup ## build with assertions and internal checks: build/dev
	@scripts/setup.sh cuda
	$(call preset,dev)

demo: ## the story of an FP8 checkpoint: made, inspected, checked, run, converted, compared, and a broken one caught
	@echo "make demo: compiles the tool for the CPU (200 files, no kernels), then tells the story of an FP8 checkpoint."
	@echo "           About 4 minutes on two cores, seconds the next time. Progress follows; all output is in build/logs."
	@$(STEPS) demo

quick: ## before each commit: the tree check, formatting and the unit suite of the CPU
	@echo "make quick: tree check, formatting, unit suite of the CPU. About 3 minutes where most is compiled."
	@$(STEPS) quick

test: ## all suites but the exhaustive ones, also under sanitizers, the tree check, the Python package
	@echo "make test: compiles library, tool, tests and (where nvcc is) kernels, runs all suites but the exhaustive ones,"
	@echo "           some of them again under sanitizers, then the Python package. About 30 minutes on two cores, 10 the next"
	@echo "           time. Progress follows; all output is in build/logs."
	@$(STEPS) test

test-all: ## before a release: also the exhaustive suite, the whole tree under each sanitizer, planted bugs, interop
	@echo "make test-all: make test, then the exhaustive suite, everything under the address, undefined-behaviour and thread"
	@echo "               sanitizers, planted bugs, exchange with other libraries. Some hours on two cores."
	@$(STEPS) test
	@$(STEPS) test-all

release: ## before a release, after test-all: library, tool and wheel with machine code for every GPU, and how long it took
	@echo "make release: library and tool with machine code for every GPU, then the wheel. About an hour on two cores."
	@$(STEPS) release

test-asan: setup ## the unit suite under the address and undefined-behaviour sanitizers
	$(call preset,asan)
	ctest --preset asan --parallel $(JOBS)

tsan: setup ## the unit and property suites under the thread sanitizer
	$(call preset,tsan)
	ctest --preset tsan --parallel $(JOBS)

gradient: build-all ## the gradient suite
	$(call suite,gradient)

property: build-all ## the property suite: same bits whatever is permuted, split or widened
	$(call suite,property)

huge: build-all ## the suite past 2^31 and 2^32 elements
	$(call suite,huge)

slow: build-all ## the exhaustive suite (many minutes)
	cmake --build --preset release --parallel $(JOBS) --target moe64_slow
	$(call suite,slow)

mutation: build ## plant known bugs one by one; the suite must catch each
	python3 scripts/mutation_test.py

bench: build .venv ## compare with PyTorch and with the machine's limits: bench/results (BENCH_ARGS=--quick: a short run)
	.venv/bin/python bench/compare.py --tool $(TOOL) $(BENCH_ARGS)

bench-gpu: build ## measure the CUDA backend against the GPU's copy (and PyTorch, where python3 has it): bench/results
	python3 bench/gpu.py --tool $(TOOL) $(BENCH_ARGS)

sanitize-gpu: build ## every CUDA kernel on small shapes under the tools of compute-sanitizer
	for tool in memcheck initcheck synccheck racecheck; do \
	  compute-sanitizer --tool $$tool --error-exitcode 9 $(TOOL) verify -f bench/problems/cuda-small.txt || exit 1; done

bench-checkpoint: build .venv ## check and convert against cat, cp and the Python way: bench/results/checkpoint.md
	python3 bench/checkpoint_speed.py --tool $(TOOL) --python .venv/bin/python --out bench/results/checkpoint.md

interop: build .venv ## files and models exchanged with the safetensors package, Transformers and compressed-tensors
	@cmp -s tests/interop/requirements.txt .venv/interop.txt || { \
	  .venv/bin/python -m pip install -q -c bench/requirements.txt -r tests/interop/requirements.txt && \
	  cp tests/interop/requirements.txt .venv/interop.txt; }
	MOE64_TOOL=$(abspath $(TOOL)) .venv/bin/python -B -m unittest discover -v -s tests/interop -p '*_test.py'

python: build .venv-tests ## the tests of the Python package, with PyTorch, Transformers, PEFT and TRL in .venv
	MOE64_TOOL=$(abspath $(TOOL)) .venv/bin/python -B -m pytest -q $(PYTEST_ARGS)

python-lint: .venv-tests ## ruff and mypy over python/, as pyproject.toml says
	.venv/bin/ruff check python
	.venv/bin/mypy

python-latest: build .venv-tests ## the same with the newest Transformers and PEFT, in .venv-latest, and what differs
	MOE64_TOOL=$(abspath $(TOOL)) scripts/python_latest.py $(PYTEST_ARGS)

wheel: setup ## the Python wheel for other machines, with library, tool and code for every GPU inside, tried out: build/wheels
	@scripts/setup.sh bench cuda
	@cmp -s scripts/wheel_requirements.txt build/wheel-venv/requirements.txt || { \
	  python3 -m venv --clear build/wheel-venv && build/wheel-venv/bin/python -m pip install -q -r scripts/wheel_requirements.txt && \
	  cp scripts/wheel_requirements.txt build/wheel-venv/requirements.txt; }
	build/wheel-venv/bin/python -B scripts/make_wheel.py $(WHEEL_ARCHITECTURES)

bench-problems: build ## time the problems of BENCH_SUITE
	$(TOOL) bench -f $(BENCH_SUITE)

.venv: # PyTorch and Transformers, 6 GB; nothing to do while bench/requirements.txt is what was installed
	@cmp -s bench/requirements.txt .venv/requirements.txt || { \
	  scripts/setup.sh bench && echo "installing bench/requirements.txt into .venv (6 GB, some minutes)" && \
	  rm -rf $(filter-out .venv/cutlass,$(wildcard .venv/*)) && python3 -m venv .venv && \
	  .venv/bin/python -m pip install -q -r bench/requirements.txt && \
	  cp bench/requirements.txt .venv/; }

.venv-tests: .venv # and what else the tests of the Python package need
	@cmp -s python/requirements.txt .venv/python.txt || { \
	  .venv/bin/python -m pip install -q -c bench/requirements.txt -r python/requirements.txt && \
	  cp python/requirements.txt .venv/python.txt; }

tidy: ## clang-tidy over the library and the tool
	@scripts/setup.sh build tidy
	$(call preset,tidy) -- -k 0

fmt: ## format the sources
	@scripts/setup.sh fmt
	clang-format -i $(SOURCES)

fmt-check: ## fail if a source is not formatted
	@scripts/setup.sh fmt
	clang-format --dry-run --Werror $(SOURCES)

fuzz: ## run each fuzzer for FUZZ_SECONDS
	@scripts/setup.sh build fuzz
	$(call preset,fuzz)
	scripts/run_fuzzers.sh build/fuzz/fuzz $(FUZZ_SECONDS)

check-tree: setup ## the rules of the repository: arrows, sizes, narrowing, links, names
	scripts/check_tree

docs: ## the documentation as a site, its links checked: build/site/index.html
	@cmp -s docs/requirements.txt build/docs-venv/requirements.txt || { \
	  scripts/setup.sh bench && python3 -m venv --clear build/docs-venv && \
	  build/docs-venv/bin/python -m pip install -q -r docs/requirements.txt && \
	  cp docs/requirements.txt build/docs-venv/; }
	NO_MKDOCS_2_WARNING=1 build/docs-venv/bin/mkdocs build --strict

install: build ## install to PREFIX
	cmake --install build/release --prefix $(PREFIX)

clean: ## remove the build folder
	rm -rf build
