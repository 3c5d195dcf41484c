# Everything a developer types. `make demo` and `make test` work on a fresh machine with Python and a C++ compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Development and CI pin torch; users may have any version the `train` extra allows.
TORCH := torch==2.13.0
NATIVE := CMakeLists.txt $(shell find csrc -type f 2>/dev/null)

.PHONY: setup demo test check coverage bench bench-tools docs wheel clean

setup: $(READY)

$(VENV)/.tools: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --group dev
	touch $@

$(READY): $(VENV)/.tools $(NATIVE)
	$(BIN)/python -m pip install --quiet --no-build-isolation -e '.[train]'
	touch $@

demo: setup
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

docs: setup
	$(BIN)/mkdocs build --strict

wheel: setup
	$(BIN)/python -m build --wheel --no-isolation --outdir dist

clean:
	rm -rf build dist site .coverage* .pytest_cache .mypy_cache .ruff_cache
