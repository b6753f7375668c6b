# The project's commands. `make help` lists them; each may be repeated, and does nothing the second
# time if nothing has changed. Everything they make lies in .venv/ and build/.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
ARGS ?=

# Scale of the long tests (fuzzing time, rounds of the soaks) and their seed, printed to repeat a run.
N ?= 1
SEED ?= $(shell od -An -N3 -tu4 /dev/urandom | tr -d ' ')
FUZZ_SECONDS = $(shell echo $$(( 90 * $(N) )))

MODEL := smollm2-135m-instruct

CMAKE := $(BIN)/cmake
CTEST := $(BIN)/ctest --output-on-failure --no-tests=error
CMAKE_NATIVE := $(CMAKE) -S . -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DCOLIBRI_TESTS=ON
NATIVE_SOURCES := $(shell find native/include native/src native/binding native/CMakeLists.txt)
C_FILES = $(shell git ls-files 'native/*.c' 'native/*.h')

##@ Use

.PHONY: help
help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(VENV)/.package ## Make the environment in .venv and build the engine (starts nothing)

# The environment: exact versions, every archive checked against its hash.
$(VENV)/.packages: requirements/dev.lock
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "setup: installing the locked packages into $(VENV)"
	@$(PY) -m pip install -qq --require-hashes --no-deps -r requirements/dev.lock
	@touch $@

# The package itself, in place: Python edits are live, C edits rebuild on the next make.
$(VENV)/.package: $(VENV)/.packages pyproject.toml CMakeLists.txt $(NATIVE_SOURCES)
	@echo "setup: building the engine"
	@PATH="$(abspath $(BIN)):$$PATH" $(PY) -m pip install -qq --no-build-isolation --no-deps --editable .
	@touch $@

.PHONY: model
model: setup ## Fetch the small starter model and convert it, once
	@$(PY) packaging/starter_model.py $(MODEL)

.PHONY: run
run: model ## Start the server with the starter model (ARGS="..." passes options)
	@exec $(BIN)/coli serve --model $(MODEL) $(ARGS)

##@ Check

.PHONY: test
test: setup model native-test ## Run what everyone runs before a change lands (under 15 minutes)
	@$(PY) -m pytest

.PHONY: native-build
native-build: setup
	@$(CMAKE_NATIVE) -B build/native '-DCOLIBRI_EMULATE=Nehalem;Haswell' > build/native.log
	@$(CMAKE) --build build/native -j $(JOBS)

# The oracle's fixtures as flat files, so that the C test needs no Python. Made anew each time: half a
# second, and no list of what they depend on to keep right.
.PHONY: dumps
dumps: setup
	@$(PY) -m tests.oracle.flatdump build/oracle > /dev/null

.PHONY: native-test
native-test: native-build dumps
	@$(CTEST) --test-dir build/native -LE emulated

.PHONY: test-long
test-long: ## Run kills, soaks, sanitizers, emulated processors and fuzzing (N= scales, SEED= repeats)
	@echo "test-long: N=$(N) SEED=$(SEED)"
	@$(MAKE) test-slow test-asan test-tsan test-arm test-cpus fuzz N=$(N) SEED=$(SEED)

.PHONY: test-slow
test-slow: setup
	@COLIBRI_TEST_SEED=$(SEED) COLIBRI_TEST_SCALE=$(N) $(PY) -m pytest -m slow

# Address and undefined-behaviour sanitizers over every native test.
.PHONY: test-asan
test-asan: dumps
	@$(CMAKE_NATIVE) -B build/asan -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCOLIBRI_SANITIZE=address,undefined > build/asan.log
	@$(CMAKE) --build build/asan -j $(JOBS)
	@$(CTEST) --test-dir build/asan -j $(JOBS)

# Thread sanitizer over what has threads: pool, sessions, cancel, read queue.
.PHONY: test-tsan
test-tsan: dumps
	@$(CMAKE_NATIVE) -B build/tsan -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCOLIBRI_SANITIZE=thread > build/tsan.log
	@$(CMAKE) --build build/tsan -j $(JOBS)
	@$(CTEST) --test-dir build/tsan -j $(JOBS) -R 'pool|session|cancel|oracle|stream|test_io'

# 64-bit Arm under user-mode emulation: every native test, the oracle included.
.PHONY: test-arm
test-arm: dumps
	@$(CMAKE_NATIVE) -B build/arm -DCMAKE_TOOLCHAIN_FILE=native/cmake/aarch64-linux-gnu.cmake > build/arm.log
	@$(CMAKE) --build build/arm -j $(JOBS)
	@$(CTEST) --test-dir build/arm -j $(JOBS)

# Older x86 processors: the same binaries must pick the kernels that these have.
.PHONY: test-cpus
test-cpus: native-build dumps
	@$(CTEST) --test-dir build/native -L emulated -E 'oracle|io@|stream' -j $(JOBS)

.PHONY: fuzz
fuzz: fuzz-native fuzz-python

.PHONY: fuzz-native
fuzz-native: setup
	@$(CMAKE) -S . -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -B build/fuzz -DCMAKE_C_COMPILER=clang-14 \
	  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCOLIBRI_SANITIZE=address,undefined -DCOLIBRI_FUZZ=ON > build/fuzz.log
	@$(CMAKE) --build build/fuzz -j $(JOBS)
	@for target in build/fuzz/native/fuzz_*; do if test -x $$target -a -f $$target; then \
	  echo "fuzz: $$(basename $$target), $(FUZZ_SECONDS) s, seed $(SEED)"; \
	  mkdir -p build/corpus/$$(basename $$target); \
	  $$target -seed=$(SEED) -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=4096 -timeout=60 -max_len=512 -len_control=0 \
	    -artifact_prefix=build/ build/corpus/$$(basename $$target) 2>&1 | tail -n 12; fi; done

.PHONY: fuzz-python
fuzz-python: setup
	@for target in tests/fuzz/fuzz_*.py; do \
	  echo "fuzz: $$(basename $$target), $(FUZZ_SECONDS) s, seed $(SEED)"; \
	  mkdir -p build/corpus/$$(basename $$target .py); \
	  $(PY) $$target -seed=$(SEED) -max_total_time=$(FUZZ_SECONDS) -timeout=20 -rss_limit_mb=4096 \
	    -artifact_prefix=build/ build/corpus/$$(basename $$target .py) 2>&1 | tail -n 6; done

.PHONY: bench
bench: model bench-native ## Measure against the machine's limits and the peer; writes build/bench.json
	@$(PY) -m tests.perf.run $(ARGS)

.PHONY: bench-native
bench-native: setup
	@mkdir -p build
	@$(CMAKE) -S . -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -B build/bench-native -DCOLIBRI_BENCH=ON \
	  > build/bench-native.log
	@$(CMAKE) --build build/bench-native -j $(JOBS) >> build/bench-native.log

##@ Maintain

.PHONY: lint
lint: setup ## Check style, types, layers, spelling and what is tracked
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/clang-format --dry-run -Werror $(C_FILES)
	@git ls-files -z | xargs -0 $(BIN)/codespell
	@$(PY) tests/repo/check_tree.py

.PHONY: format
format: setup ## Format the Python and C sources in place
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format --quiet .
	@$(BIN)/clang-format -i $(C_FILES)

.PHONY: lock
lock: setup ## Write requirements/*.lock from pyproject.toml (ARGS=--upgrade moves the versions)
	@$(PY) requirements/lock.py $(ARGS)

.PHONY: clean
clean: ## Remove what was built (build/ and caches); keeps .venv
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache $(VENV)/.package
	@find sidecar app tests native -name __pycache__ -type d -prune -exec rm -rf {} +
