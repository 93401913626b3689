# make test-deep: what is too slow, or too foreign, for every commit.
STATIC := -DLOWBIT_PYTHON=OFF -DLOWBIT_TESTS=ON -DLOWBIT_WERROR=ON -DCMAKE_EXE_LINKER_FLAGS=-static
CONFIGURE = $(CMAKE) -S . -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja

.PHONY: deep-proof deep-x86 deep-arm deep-avx512 deep-sanitizers deep-python deep-mutants tsan

deep-tools:
	@for tool in aarch64-linux-gnu-g++ qemu-aarch64 qemu-x86_64 bochs-bin xorriso cpio /usr/lib/ISOLINUX/isolinux.bin; do \
	  command -v $$tool > /dev/null || test -f $$tool || missing=1; done; \
	if [ -n "$$missing" ]; then apt-get update -q && apt-get install -y -q --no-install-recommends g++-aarch64-linux-gnu \
	  qemu-user bochs bochs-term bochsbios vgabios isolinux syslinux-common xorriso cpio; fi

test-deep: test deep-tools deep-proof deep-x86 deep-arm deep-avx512 deep-sanitizers tsan deep-python deep-mutants

# The multiply-speed quotient by exhaustion, for every ISA of this CPU.
deep-proof: build/python/lowbit_tests
	build/python/lowbit_tests --proof

# A CPU without AVX: no illegal instruction, the same bits.
deep-x86: $(VENV)/.made
	$(CONFIGURE) -B build/static $(STATIC)
	$(CMAKE) --build build/static
	qemu-x86_64 -cpu Nehalem build/static/lowbit_tests
	qemu-x86_64 -cpu qemu64 build/static/lowbit_tests

# The NEON rows, cross-compiled and emulated.
deep-arm: $(VENV)/.made
	$(CONFIGURE) -B build/aarch64 $(STATIC) -DCMAKE_TOOLCHAIN_FILE=scripts/aarch64.cmake
	$(CMAKE) --build build/aarch64
	qemu-aarch64 build/aarch64/lowbit_tests

# The AVX-512 rows: on this CPU where it has them, else in an emulator that does. Bochs before 3.0 rounds ties of
# vcvtps2ph up instead of to even, so the rows that store float16 are not run there; BOCHS names a newer one.
deep-avx512: deep-x86
	@if grep -qw avx512vl /proc/cpuinfo; then build/static/lowbit_tests avx512; \
	elif [ -n "$$BOCHS" ]; then scripts/run_in_bochs.sh build/static/lowbit_tests avx512; \
	else scripts/run_in_bochs.sh build/static/lowbit_tests avx512 --no-half-stores; fi
	$(CMAKE) --build build/static --target lowbit_tests_emulated
	@if grep -qw avx512_vnni /proc/cpuinfo; then build/static/lowbit_tests vnni; \
	else BOCHS_FEATURES='avx512vnni avx512vpopcnt avx512bitalg' scripts/run_in_bochs.sh \
	  build/static/lowbit_tests_emulated vnni --rows; fi

deep-sanitizers: $(VENV)/.test
	$(CONFIGURE) -B build/sanitized -DLOWBIT_TESTS=ON -DLOWBIT_SANITIZE=address,undefined \
	  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python
	$(CMAKE) --build build/sanitized --target all lowbit_tests
	build/sanitized/lowbit_tests
	rm -rf build/sanitized/site && mkdir -p build/sanitized/site
	cp -r src/lowbit build/sanitized/site/ && rm -f build/sanitized/site/lowbit/_core*.so
	cp build/sanitized/_core*.so build/sanitized/site/lowbit/
	@# the editable install would put its own module first
	printf 'import sys\nsys.meta_path[:] = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]\n' \
	  > build/sanitized/site/sitecustomize.py
	ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
	  PYTHONPATH=build/sanitized/site LOWBIT_SANITIZED=1 $(BIN)/python -m pytest --capture=sys -m "not deep" tests

# Data races of the thread pool. Memory is not laid out at random: older runtimes of ThreadSanitizer cannot run then.
tsan: $(VENV)/.made
	$(CONFIGURE) -B build/tsan -DLOWBIT_PYTHON=OFF -DLOWBIT_TESTS=ON -DLOWBIT_WERROR=ON -DLOWBIT_SANITIZE=thread
	$(CMAKE) --build build/tsan --target lowbit_pool_tests
	setarch -R build/tsan/lowbit_pool_tests

deep-python: $(VENV)/.test
	$(BIN)/python -m pytest -m deep tests
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -m deep $(GPU_INTERPRETED)
	$(BIN)/python -m pytest -m deep $(GPU_COMPILED)
	$(BIN)/python -m pytest -m deep $(wildcard tests/gpu/test_ptx*.py)

# Every fault in scripts/mutants.txt makes a test fail.
deep-mutants: $(VENV)/.test
	$(BIN)/python scripts/mutants.py
