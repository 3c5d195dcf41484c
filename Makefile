# Everything a developer types. `make demo` and `make test` work on a fresh machine with Python and a C++ compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Development and CI pin torch; users may have any version the `train` extra allows.
TORCH := torch==2.13.0
NATIVE := CMakeLists.txt $(shell find csrc -type f 2>/dev/null)

.PHONY: setup demo test check coverage bench bench-tools soak fuzz sanitize zoo zoo-unlisted web web-setup web-compare docs wheel wheels wheel-setup clean
.PHONY: test-deploy test-export test-extras test-native test-platforms test-wheels chips cross extra-setup zoo-setup

setup: $(READY)

$(VENV)/.made:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

$(VENV)/.tools: pyproject.toml | $(VENV)/.made
	@echo "Installing torch and the development tools into $(VENV): some minutes, once"
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --group dev
	touch $@

$(READY): $(VENV)/.tools $(NATIVE)
	@echo "Compiling the native core: some minutes"
	$(BIN)/python -m pip install --quiet --no-build-isolation -e '.[train]'
	touch $@

# The demo alone: torch and the package, none of the tools for tests, checks and documents. A venv that `make setup` has
# prepared is used as it is.
$(VENV)/.demo: pyproject.toml $(NATIVE) | $(VENV)/.made
	@echo "Installing torch into $(VENV) and compiling the native core: some minutes, once"
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet -e '.[train]'
	touch $@

demo: $(if $(wildcard $(READY)),$(READY),$(VENV)/.demo)
	$(BIN)/xnorpp demo

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/mkdocs build --strict --quiet

# Line coverage of nn, training and data over the tests that exercise them, in every process that these start.
COVERAGE := $(CURDIR)/build/coverage
coverage: setup
	rm -rf $(COVERAGE) && mkdir -p $(COVERAGE)/parts
	COVERAGE_PROCESS_START=$(CURDIR)/pyproject.toml COVERAGE_FILE=$(COVERAGE)/parts/data OMP_NUM_THREADS=1 \
	$(BIN)/python -m pytest -n 2 --dist worksteal -q tests/nn tests/models tests/convert tests/data tests/training tests/cli
	$(BIN)/python tests/combine_coverage.py $(COVERAGE)/parts $(COVERAGE)/joined
	$(BIN)/python -m coverage report --data-file=$(COVERAGE)/joined --fail-under=90 \
	--include='*/xnorpp/nn/*,*/xnorpp/training/*,*/xnorpp/data/*'

bench-tools: setup
	$(BIN)/python -m pip install --quiet --no-build-isolation -e '.[bench]'

# Timings need an otherwise idle machine. The CPU engine is timed twice: with all instruction sets, and with AVX-512
# hidden from every engine.
bench: bench-tools
	$(BIN)/python benchmarks/train_step.py
	$(BIN)/xnorpp bench --startup
	$(BIN)/xnorpp bench --layers
	$(BIN)/xnorpp bench --layers --avx2-only
	$(BIN)/xnorpp bench --threads 1,2
	$(BIN)/xnorpp bench --threads 1,2 --avx2-only

# Half an hour of mixed load, then 10,000 forks in every state; both append their report to results/soak.jsonl.
soak: setup
	$(BIN)/python benchmarks/soak.py
	$(BIN)/python benchmarks/fork_stress.py

# 100,000 damaged files, read and run by the native engine.
fuzz: setup
	$(BIN)/python benchmarks/fuzz_files.py --engine native

# The native tests, and the fuzzing of the whole engine, under AddressSanitizer and UndefinedBehaviorSanitizer.
sanitize: setup
	$(BIN)/python benchmarks/sanitize.py

# What needs packages, emulators or compilers of its own; it is installed first. XNORPP_DEPLOY makes a failure of every test
# that would be skipped for another reason than the processor. Two of the targets run at a time, because much of this is downloads
# and programs of one thread.
PARTS := test-platforms test-wheels test-extras test-export test-native
test-deploy: setup
	$(MAKE) --jobs=1 chips cross web-setup wheel-setup extra-setup zoo-setup
	$(MAKE) --jobs=2 --output-sync=line $(PARTS)

# $(call programs,NAMES,PACKAGES): the packages of the system are installed where one of the programs is missing; a failure ends it.
APT := $(if $(filter-out 0,$(shell id -u)),sudo )apt-get
programs = for name in $(1); do command -v $$name > /dev/null || { $(APT) install -y -q --no-install-recommends $(2) || exit 1; break; }; done

# Compilers and emulators: of chips, and of other systems; those that are not here come from PyPI's ziglang.
chips:
	$(call programs,qemu-system-arm qemu-system-riscv32 arm-none-eabi-gcc riscv64-unknown-elf-gcc,gcc-arm-none-eabi \
	libnewlib-arm-none-eabi qemu-system-arm gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf qemu-system-misc)

cross:
	$(call programs,qemu-aarch64 qemu-riscv64 aarch64-linux-gnu-g++ riscv64-linux-gnu-g++ x86_64-w64-mingw32-g++-posix wine pkg-config,\
	qemu-user g++-aarch64-linux-gnu g++-riscv64-linux-gnu g++-mingw-w64-x86-64 wine64 wine pkg-config)

# An environment on top of $(VENV): what is installed into it comes first, everything else is taken from there.
PURELIB := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
$(VENV)-%/.made: | $(READY)
	$(PYTHON) -m venv $(VENV)-$*
	echo "import site; site.addsitedir('$$($(abspath $(BIN))/python $(PURELIB))')" > "$$($(VENV)-$*/bin/python $(PURELIB))/under.pth"
	touch $@

# Two, because torchvision's compiled part does not load beside a torch without CUDA, and Lightning imports whatever it finds.
extra-setup: setup $(VENV)-extra/.made
	$(VENV)-extra/bin/python -m pip install --quiet $(TORCH) triton==3.7.0 lightning 'ray[data]'

zoo-setup: setup $(VENV)-zoo/.made
	$(VENV)-zoo/bin/python -m pip install --quiet $(TORCH) 'timm>=1.0.31' torchvision

# Our package with those of others: networks of timm and torchvision, Lightning, Ray, Triton's interpreter; and an operation
# that a stranger adds.
test-extras: extra-setup zoo-setup
	XNORPP_DEPLOY=1 OMP_NUM_THREADS=1 $(VENV)-extra/bin/python -m pytest -q -p no:cacheprovider tests/examples tests/extras/check_ray.py tests/extras/check_new_operation.py
	XNORPP_DEPLOY=1 OMP_NUM_THREADS=1 $(VENV)-zoo/bin/python -m pytest -q -p no:cacheprovider tests/extras/check_timm_torchvision.py
	XNORPP_DEPLOY=1 OMP_NUM_THREADS=1 $(VENV)-extra/bin/python -m pytest -q -p no:cacheprovider -n 2 --dist worksteal tests/nn/test_fused*.py

# What the suite leaves out: kernels and the reader under sanitizers, NEON by emulation, the browser package, a whole table.
test-native: cross web-setup
	$(MAKE) web
	XNORPP_DEPLOY=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -p no:cacheprovider tests/native/test_native.py tests/web \
	tests/runtime/test_fuzz_file.py::test_damaged_files_under_sanitizers \
	tests/cli/test_runs.py::test_a_quick_table3_trains_every_row_on_the_digits

# The C library: compiled for other systems and run there, and installed here.
test-platforms: cross web-setup
	$(BIN)/python tests/native/check_platforms.py
	$(BIN)/python tests/native/check_install.py

# The browser package and its page, in web/dist. Zig's clang compiles to WebAssembly; node and chromium are for the tests.
ZIG := 'ziglang>=0.15'
web-setup: setup
	$(BIN)/python -m pip install --quiet $(ZIG)
	$(call programs,node,nodejs)
	$(call programs,npm,npm)
	$(call programs,chromium,chromium)

web: setup
	$(BIN)/python web/build.py

# What the page's button `Compare` loads: onnxruntime-web and real-valued networks, about 16 MB.
web-compare: web
	$(BIN)/python -m pip install --quiet onnx onnxscript
	$(BIN)/python web/compare.py

# Exported networks where they are to run: generated C on emulated chips, models in other engines. qonnx makes models in the
# newest format that onnx knows, which onnxruntime may not know yet: hence the older onnx.
ENGINES := 'onnx<1.20' onnxruntime openvino qonnx
test-export: setup chips $(VENV)-export/.made
	XNORPP_DEPLOY=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -p no:cacheprovider tests/export/check_emulators.py tests/export/check_arduino.py
	$(VENV)-export/bin/python -m pip install --quiet $(ENGINES)
	XNORPP_DEPLOY=1 OMP_NUM_THREADS=1 $(VENV)-export/bin/python -m pytest -q -p no:cacheprovider tests/export/check_engines.py

# Foreign networks of timm and torchvision: made binary, trained five steps, packed and compared with torch. Some 20 minutes.
zoo: zoo-setup
	OMP_NUM_THREADS=1 $(VENV)-zoo/bin/python benchmarks/zoo.py

# Some 190 more of them, one of each family at least, and the constructs that people write; without training. An hour.
zoo-unlisted: zoo-setup
	OMP_NUM_THREADS=1 $(VENV)-zoo/bin/python benchmarks/zoo.py --unlisted

docs: setup
	$(BIN)/mkdocs build --strict

# Needs no torch and no development tools: the build fetches what pyproject.toml lists, into a place of its own.
$(VENV)/.build: | $(VENV)/.made
	$(BIN)/python -m pip install --quiet 'build>=1.2'
	touch $@

wheel: $(VENV)/.build
	$(BIN)/python -m build --wheel --outdir dist

# What a release for Linux has, in dist/: the source distribution, and manylinux_2_28 wheels for x86_64 and aarch64. Needs
# Python 3.12 or 3.13 with headers; 3.10 and 3.11 get their wheels where they are found too.
wheels: wheel-setup
	$(BIN)/python packaging/build_wheels.py

wheel-setup: $(VENV)/.build
	$(BIN)/python -m pip install --quiet $(ZIG) 'auditwheel>=6'

# The wheels in clean environments: every Python found here, and aarch64 under qemu.
test-wheels: setup wheels cross
	$(BIN)/python packaging/check_wheels.py

clean:
	rm -rf build dist site .coverage* .pytest_cache .mypy_cache .ruff_cache
