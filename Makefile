# Everything a developer types. `make demo` and `make test` work on a fresh machine with Python and a C++ compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Development and CI pin torch; users may have any version the `train` extra allows.
TORCH := torch==2.13.0
NATIVE := CMakeLists.txt $(shell find csrc -type f 2>/dev/null)

.PHONY: setup demo test check coverage bench bench-tools soak fuzz sanitize test-deploy test-export zoo zoo-unlisted web web-setup web-compare docs wheel wheels test-wheels clean

setup: $(READY)

$(VENV)/.made:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

$(VENV)/.tools: pyproject.toml | $(VENV)/.made
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --group dev
	touch $@

$(READY): $(VENV)/.tools $(NATIVE)
	$(BIN)/python -m pip install --quiet --no-build-isolation -e '.[train]'
	touch $@

# The demo alone: torch and the package, none of the tools for tests, checks and documents. A venv that `make setup` has
# prepared is used as it is.
$(VENV)/.demo: pyproject.toml $(NATIVE) | $(VENV)/.made
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

# What needs packages or compilers of its own, installed here; nothing is skipped. timm and torchvision bring another torch,
# so they get an environment of their own. Emulators and compilers for other platforms come from the system, and from PyPI's
# ziglang.
test-deploy: setup test-export
	$(BIN)/python -m pip install --quiet lightning 'ray[data]'
	XNORPP_ALL_EXAMPLES=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/examples tests/extras/check_ray.py
	$(BIN)/python -m pytest -q tests/extras/check_new_operation.py
	test -x $(VENV)-deploy/bin/python || $(PYTHON) -m venv $(VENV)-deploy
	$(VENV)-deploy/bin/python -m pip install --quiet timm torchvision pytest numpy safetensors pillow
	$(VENV)-deploy/bin/python -m pip install --quiet '.[train]'
	$(VENV)-deploy/bin/python -m pytest -q -p no:cacheprovider tests/extras/check_timm_torchvision.py
	$(VENV)-deploy/bin/python -m pip install --quiet triton==3.7.0
	OMP_NUM_THREADS=1 $(VENV)-deploy/bin/python -m pytest -q -p no:cacheprovider tests/nn/test_fused*.py
	which qemu-aarch64 riscv64-linux-gnu-g++ x86_64-w64-mingw32-g++-posix wine > /dev/null || apt-get install -y -q --no-install-recommends \
	qemu-user g++-aarch64-linux-gnu g++-riscv64-linux-gnu g++-mingw-w64-x86-64 wine64 wine
	$(MAKE) web-setup web
	XNORPP_DEPLOY=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/native tests/web tests/runtime/test_fuzz_file.py tests/cli/test_runs.py
	$(BIN)/python tests/native/check_platforms.py
	$(BIN)/python tests/native/check_install.py
	$(MAKE) test-wheels

# The browser package and its page, in web/dist. Zig's clang compiles to WebAssembly; node and chromium are for the tests.
web-setup: setup
	$(BIN)/python -m pip install --quiet 'ziglang>=0.15'
	command -v node > /dev/null || apt-get install -y -q nodejs npm
	command -v chromium > /dev/null || apt-get install -y -q --no-install-recommends chromium

web: setup
	$(BIN)/python web/build.py

# What the page's button `Compare` loads: onnxruntime-web and real-valued networks, about 16 MB.
web-compare: web
	$(BIN)/python -m pip install --quiet onnx onnxscript
	$(BIN)/python web/compare.py

# Exported networks where they are to run: generated C on emulated chips, models in other engines. qonnx makes models in the
# newest format that onnx knows, which onnxruntime may not know yet: hence the older onnx.
ENGINES := 'onnx<1.20' onnxruntime openvino qonnx
CHIPS := gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf qemu-system-misc
test-export: setup
	for tool in qemu-system-arm qemu-system-riscv32 arm-none-eabi-gcc riscv64-unknown-elf-gcc; do \
	command -v $$tool > /dev/null || { apt-get install -y -q $(CHIPS); break; }; done
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/export/check_emulators.py tests/export/check_arduino.py
	test -x $(VENV)-export/bin/python || $(PYTHON) -m venv $(VENV)-export
	$(VENV)-export/bin/python -m pip install --quiet $(ENGINES) pytest .
	OMP_NUM_THREADS=1 $(VENV)-export/bin/python -m pytest -q -p no:cacheprovider tests/export/check_engines.py

# Foreign networks of timm and torchvision: made binary, trained five steps, packed and compared with torch. Some 20 minutes.
zoo: setup
	test -x $(VENV)-deploy/bin/python || $(PYTHON) -m venv $(VENV)-deploy
	$(VENV)-deploy/bin/python -m pip install --quiet timm torchvision numpy safetensors pillow
	$(VENV)-deploy/bin/python -m pip install --quiet '.[train]'
	OMP_NUM_THREADS=1 $(VENV)-deploy/bin/python benchmarks/zoo.py

# Some 150 more of them, one of each family at least, and the constructs that people write; without training. An hour.
zoo-unlisted: setup
	test -x $(VENV)-deploy/bin/python || $(PYTHON) -m venv $(VENV)-deploy
	$(VENV)-deploy/bin/python -m pip install --quiet timm torchvision numpy safetensors pillow
	$(VENV)-deploy/bin/python -m pip install --quiet '.[train]'
	OMP_NUM_THREADS=1 $(VENV)-deploy/bin/python benchmarks/zoo.py --unlisted

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
wheels: $(VENV)/.build
	$(BIN)/python -m pip install --quiet 'ziglang>=0.15' 'auditwheel>=6'
	$(BIN)/python packaging/build_wheels.py

# The wheels in clean environments: every Python found here, and aarch64 under qemu.
test-wheels: setup wheels
	command -v qemu-aarch64 > /dev/null || apt-get install -y -q --no-install-recommends qemu-user
	$(BIN)/python packaging/check_wheels.py

clean:
	rm -rf build dist site .coverage* .pytest_cache .mypy_cache .ruff_cache
