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
FUZZ_SECONDS = $(shell echo $$(( 30 * $(N) )))

# A small chat model that `make model` fetches; `make run MODEL=...` (and `make app`) serves it, or any other one.
CHAT_MODEL := smollm2-135m-instruct
MODEL :=

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
model: setup ## Fetch a small chat model (SmolLM2, 93 MB) and convert it, once
	@$(PY) packaging/chat_model.py $(CHAT_MODEL)

# The dashboard's files, made anew when a source of theirs has changed. Only this needs Node.
FRONTEND_SOURCES := $(shell find frontend -type f -not -path '*/node_modules/*' -not -path 'frontend/dist/*' \
  -not -path 'frontend/e2e/*' -not -name '*.test.*' -not -name '*.md' 2>/dev/null)
HAS_NODE = node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 19) ? 0 : 1)' 2>/dev/null

frontend/node_modules/.package-lock.json: frontend/package-lock.json
	@cmp -s $< frontend/node_modules/.locked || { \
	  echo "web: installing the locked packages into frontend/node_modules"; \
	  npm --prefix frontend ci --silent --no-audit --no-fund --prefer-offline && cp $< frontend/node_modules/.locked; }
	@touch $@

frontend/dist/index.html: frontend/node_modules/.package-lock.json $(FRONTEND_SOURCES)
	@echo "web: building the dashboard"
	@npm --prefix frontend run --silent build
	@touch $@

.PHONY: web
web: ## Build the dashboard's files into frontend/dist (needs Node 20.19 or newer)
	@$(HAS_NODE) || { echo "web: Node 20.19 or newer is needed to build the dashboard" >&2; exit 1; }
	@$(MAKE) frontend/dist/index.html

# A server without its page is a server all the same.
.PHONY: web-if-node
web-if-node:
	@if $(HAS_NODE); then \
	  $(MAKE) frontend/dist/index.html || echo "run: the dashboard could not be built; the API is served without it" >&2; \
	else \
	  echo "run: no Node 20.19 or newer: the API is served without the dashboard; install Node, then \`make web\`" >&2; \
	fi

.PHONY: run
run: setup $(if $(filter $(CHAT_MODEL),$(MODEL)),model) web-if-node ## Start the server with the starter model or MODEL=name (ARGS="..." passes options)
	@exec $(BIN)/coli serve $(addprefix --model ,$(MODEL)) $(ARGS)

# The window's own environment: the system's Python where that has WebKitGTK, else Qt.
SYSTEM_PYTHON ?= /usr/bin/python3
HAS_GTK = $(SYSTEM_PYTHON) -c 'import gi; gi.require_version("Gtk", "3.0"); gi.require_version("WebKit2", "4.1")' 2>/dev/null
TOOLKIT ?= $(shell $(HAS_GTK) && echo gtk || echo qt)

build/window-gtk/.ready: requirements/window.lock
	@echo "app: the window's environment, with the system's WebKitGTK"
	@$(SYSTEM_PYTHON) -m venv --system-site-packages build/window-gtk
	@build/window-gtk/bin/python -m pip install -qq --require-hashes --no-deps --ignore-installed -r $<
	@touch $@

build/window-qt/.ready: requirements/qt.lock
	@echo "app: the window's environment, with Qt (700 MB); with gir1.2-webkit2-4.1 and python3-gi none is needed"
	@$(PYTHON) -m venv build/window-qt
	@build/window-qt/bin/python -m pip install -qq --require-hashes --no-deps -r $<
	@touch $@

.PHONY: app
app: setup $(if $(filter $(CHAT_MODEL),$(MODEL)),model) web-if-node ## Open the desktop window (TOOLKIT=gtk or qt; MODEL and ARGS as for run)
	@$(MAKE) build/window-$(TOOLKIT)/.ready
	@PYTHONPATH=$(CURDIR)/app:$(CURDIR)/sidecar PYWEBVIEW_GUI=$(TOOLKIT) \
	  exec build/window-$(TOOLKIT)/bin/python -m colibri_app --sidecar $(abspath $(BIN)/sidecar) $(addprefix --model ,$(MODEL)) $(ARGS)

##@ Check

.PHONY: test
test: setup model native-test web-test ## Run what everyone runs before a change lands (under 15 minutes)
	@$(PY) -m pytest

# What belongs to the dashboard alone is checked again only when something of it has changed.
WEB_FILES := $(shell find frontend -type f -not -path '*/node_modules/*' -not -path 'frontend/dist/*' 2>/dev/null)

.PHONY: need-node
need-node:
	@$(HAS_NODE) || { echo "Node 20.19 or newer is needed to check the dashboard" >&2; exit 1; }

.PHONY: web-test
web-test: need-node
	@$(MAKE) build/web-test

build/web-test: frontend/node_modules/.package-lock.json $(WEB_FILES)
	@npm --prefix frontend test --silent
	@mkdir -p build && touch $@

.PHONY: web-lint
web-lint: need-node
	@$(MAKE) build/web-lint

build/web-lint: frontend/node_modules/.package-lock.json $(WEB_FILES)
	@npm --prefix frontend run check --silent
	@mkdir -p build && touch $@

# The types of the API's bodies, as the server describes them; `make lint` fails if they are old.
.PHONY: web-types
web-types: setup need-node frontend/node_modules/.package-lock.json ## Write the page's types of the API anew
	@mkdir -p build
	@$(PY) -m tests.support.description > build/openapi.json
	@npm --prefix frontend run types --silent > build/web-types.log

.PHONY: web-types-check
web-types-check: setup need-node frontend/node_modules/.package-lock.json
	@mkdir -p build
	@$(PY) -m tests.support.description > build/openapi.json
	@npm --prefix frontend run types --silent -- --check > build/web-types.log 2>&1 || { \
	  cat build/web-types.log; echo "lint: the API has changed; run \`make web-types\` and commit what it writes" >&2; exit 1; }

.PHONY: test-e2e
test-e2e: setup model web ## Click through the dashboard in Chromium, against real and scripted servers
	@npm --prefix frontend run size --silent
	@npm --prefix frontend run e2e --silent

.PHONY: test-app
test-app: model web ## Use the desktop window on a display of its own (needs Xvfb, openbox, wmctrl, xdotool, ImageMagick)
	@$(HAS_GTK) || { echo "test-app: WebKitGTK is needed: gir1.2-webkit2-4.1, python3-gi, gir1.2-gtk-3.0" >&2; exit 1; }
	@$(MAKE) build/window-gtk/.ready
	@$(PY) -m pytest -m window tests/window

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

.PHONY: test-clients
test-clients: setup model ## Drive real clients against the server; fetches them once (CAPTURES=dir replays recordings)
	@$(PY) -m tests.clients.run $(if $(CAPTURES),--captures $(CAPTURES)) $(ARGS)

.PHONY: test-long
test-long: ## Run kills, soaks, sanitizers, emulated processors and fuzzing (N= scales, SEED= repeats)
	@echo "test-long: N=$(N) SEED=$(SEED)"
	@$(MAKE) test-slow test-asan test-tsan test-arm test-cpus fuzz N=$(N) SEED=$(SEED)

# The ten minutes of made-up requests need one core at most and run beside all the others, for time.
.PHONY: test-slow
test-slow: setup
	@export COLIBRI_TEST_SEED=$(SEED) COLIBRI_TEST_SCALE=$(N); failed=0; mkdir -p build; \
	$(PY) -m pytest -m slow tests/contract/test_schemathesis.py > build/schemathesis.log 2>&1 & beside=$$!; \
	$(PY) -m pytest -m slow --ignore=tests/contract/test_schemathesis.py || failed=1; \
	wait $$beside || failed=1; cat build/schemathesis.log; exit $$failed

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

# In an environment of its own: what it compares with needs torch, and nothing else here does.
.PHONY: test-golden
test-golden: setup ## Compare prompts of GLM and Inkling, text and token ids, with another implementation (by hand)
	@test -x build/golden/env/bin/python || $(PYTHON) -m venv build/golden/env
	@build/golden/env/bin/python -m pip install -q tml-renderers==0.2.1 torch==2.13.0
	@build/golden/env/bin/python -W ignore -m tests.golden.reference build/golden
	@$(PY) -m tests.golden.check build/golden $(ARGS)

.PHONY: bench
bench: model bench-native ## Measure against the machine's limits and the peer; writes build/bench.json
	@$(PY) -m tests.perf.run $(ARGS)

.PHONY: bench-native
bench-native: setup
	@mkdir -p build
	@$(CMAKE) -S . -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -B build/bench-native -DCOLIBRI_BENCH=ON \
	  > build/bench-native.log
	@$(CMAKE) --build build/bench-native -j $(JOBS) >> build/bench-native.log

##@ Release

# The system's own Python, where it is complete: on Debian it alone knows GTK (python3-gi).
RELEASE_PYTHON ?= $(shell /usr/bin/python3 -c 'import ensurepip, os, sys, sysconfig; sys.exit(sys.version_info < (3, 11) \
  or not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' 2>/dev/null && echo /usr/bin/python3 || echo $(PYTHON))
RELEASE_ENV := build/release/env
RELEASE_OUT := build/release/out
RELEASE_BUILD = PYTHONPATH=packaging $(RELEASE_ENV)/bin/python -m release.build

$(RELEASE_ENV)/.packages: requirements/release.lock
	@mkdir -p $(RELEASE_ENV)
	@$(RELEASE_PYTHON) -m venv --clear --system-site-packages $(RELEASE_ENV)
	@echo "release: installing the locked packages into $(RELEASE_ENV)"
	@$(RELEASE_ENV)/bin/python -m pip install -qq --require-hashes --no-deps -r requirements/release.lock
	@touch $@

.PHONY: release-inputs
release-inputs: setup web $(RELEASE_ENV)/.packages

.PHONY: release
release: release-inputs ## Build every release that this system can build, and try each (as root also on a bare Debian)
	@$(RELEASE_BUILD)
	@$(PY) packaging/smoke --root build/release/bare --if-possible $(RELEASE_OUT)
	@$(MAKE) release-window

# The window of the frozen program, used as `make test-app` uses that of the sources.
RELEASE_PROGRAM := build/release/dist/colibri-desktop/sidecar
.PHONY: release-window
release-window: model
	@if test ! -x $(RELEASE_PROGRAM); then echo "release: THE WINDOW IS NOT TRIED: no program with one was built" >&2; \
	elif ! command -v Xvfb openbox wmctrl xdotool import > /dev/null; then \
	  echo "release: THE WINDOW IS NOT TRIED: it takes Xvfb, openbox, wmctrl, xdotool and ImageMagick" >&2; \
	else COLIBRI_TEST_PROGRAM=$(abspath $(RELEASE_PROGRAM)) $(PY) -m pytest -q -m window tests/window; fi

.PHONY: test-release
test-release: release-inputs ## Freeze the server alone and try it in an empty folder (about two minutes)
	@$(RELEASE_BUILD) --variant headless
	@$(PY) packaging/smoke $(RELEASE_OUT)

.PHONY: release-twice
release-twice: release-inputs ## Freeze the server alone twice, and say in which files the two archives differ
	@rm -rf build/release/first && mkdir -p build/release/first
	@$(RELEASE_BUILD) --variant headless
	@cp $(RELEASE_OUT)/*.tar.gz build/release/first/
	@rm -rf build/release/freeze build/release/dist
	@$(RELEASE_BUILD) --variant headless
	@PYTHONPATH=packaging $(PY) -m release.compare build/release/first/*.tar.gz $(RELEASE_OUT)/*.tar.gz

##@ Maintain

.PHONY: lint
lint: setup web-lint web-types-check ## Check style, types, layers, spelling and what is tracked
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/clang-format --dry-run -Werror $(C_FILES)
	@git ls-files -z | xargs -0 $(BIN)/codespell
	@$(PY) tests/repo/check_tree.py

.PHONY: format
format: setup ## Format the sources in place
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format --quiet .
	@$(BIN)/clang-format -i $(C_FILES)
	@if $(HAS_NODE); then $(MAKE) frontend/node_modules/.package-lock.json && npm --prefix frontend run format --silent; fi

.PHONY: lock
lock: setup ## Write requirements/*.lock from pyproject.toml (ARGS=--upgrade moves the versions)
	@$(PY) requirements/lock.py $(ARGS)

# Training needs torch, which nothing else does: an environment of its own.
STARTER := build/starter
STARTER_PY := $(STARTER)/env/bin/python

$(STARTER)/env/.packages: requirements/starter.lock
	@test -x $(STARTER_PY) || $(PYTHON) -m venv $(STARTER)/env
	@echo "starter: installing the locked packages into $(STARTER)/env"
	@$(STARTER_PY) -m pip install -qq --require-hashes --no-deps -r requirements/starter.lock
	@touch $@

.PHONY: starter
starter: setup $(STARTER)/env/.packages ## Make the starter model from nothing: hours (ARGS=--ship puts it into the package)
	@PYTHONPATH=packaging:sidecar $(PY) -m starter.build $(STARTER) --python $(STARTER_PY) $(ARGS)

.PHONY: starter-tune
starter-tune: setup $(STARTER)/env/.packages ## Teach it what has changed in its facts and words, half an hour (ARGS=--ship)
	@PYTHONPATH=packaging:sidecar $(PY) -m starter.build $(STARTER) --python $(STARTER_PY) --tune $(ARGS)

.PHONY: clean
clean: ## Remove what was built (build/ and caches); keeps .venv
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache $(VENV)/.package
	@find sidecar app tests native -name __pycache__ -type d -prune -exec rm -rf {} +
