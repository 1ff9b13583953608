# The two commands for a fresh machine (Python 3.11+, make): `make run` and `make test`.
# An install takes what requirements/*.txt pin by hash and nothing else; stamps in .venv make the second run quick.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Three for each core of a small machine: many tests wait, for a timer or for another process.
WORKERS := 6
GET_BWRAP := apt-get install bubblewrap, or the same from your distribution
# The tool behind `make lock`, in the version that the tests make environments with.
UV     := $(shell sed -nE 's/^(uv==[^ ]+).*/\1/p' requirements/test.txt)

# Compiled tests are kept: without that each worker compiles all of them by itself, which is most of its start.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install run test unit soak strace bubblewrap chromium lint compiled requirements bench fmt lock clean

help: ## this list
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | while IFS="$$(printf '\t')" read -r name text; do \
		printf '  make %-13s %s\n' "$$name" "$$text"; done

install: $(VENV)/.installed ## .venv/bin/trunkline, and no more than it needs
	@command -v bwrap > /dev/null || echo "Spaces run commands in bubblewrap, which is missing here: $(GET_BWRAP)"

run: install ## the exchange with the example agents
	@exec $(BIN)/trunkline up --demo

test: $(VENV)/.test strace bubblewrap chromium ## all checks and all tests
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint compiled
	$(BIN)/pytest -n $(WORKERS) --dist worksteal tests/unit
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --ignore tests/unit
	$(BIN)/python tools/requirements.py

unit: $(VENV)/.test ## the quick tests, in about a minute
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow" --hypothesis-profile quick tests/unit

soak: $(VENV)/.test strace bubblewrap ## the promises at larger figures: MINUTES=60, FROM="kill9=1040" to go on, ONLY="kill9 power"
	$(BIN)/python -m tools.soak --minutes $(or $(MINUTES),10) --from "$(FROM)" --only "$(ONLY)"

# Tests of the order of system calls, and of system calls that fail, look on through it.
strace:
	@command -v strace > /dev/null || { [ "$$(id -u)" = 0 ] && { apt-get update && apt-get install --yes strace; } > /dev/null 2>&1; } \
		|| echo "strace is missing and could not be installed (apt-get install strace): tests that need it are skipped"

# A space's shell needs it, and so do the tests of the sandbox.
bubblewrap:
	@command -v bwrap > /dev/null || { [ "$$(id -u)" = 0 ] && { apt-get update && apt-get install --yes bubblewrap; } > /dev/null 2>&1; } \
		|| echo "bubblewrap is missing and could not be installed ($(GET_BWRAP)): tests that need it are skipped"

# The console's page is tried in it.
chromium:
	@command -v chromium > /dev/null || { [ "$$(id -u)" = 0 ] && { apt-get update && apt-get install --yes --no-install-recommends chromium; } > /dev/null 2>&1; } \
		|| echo "chromium is missing and could not be installed (apt-get install chromium): tests of the console's page are skipped"

lint: $(VENV)/.test ## ruff, mypy --strict, the layer rule
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict
	$(BIN)/lint-imports --no-cache

# All tests once, beside the checks, which use one core: all workers would do it at the same time.
compiled: $(VENV)/.test
	@$(BIN)/pytest --collect-only -qq > $(VENV)/collected || { cat $(VENV)/collected; exit 1; }

requirements: $(VENV)/.installed ## which rows of each protocol have a test
	@$(BIN)/python tools/requirements.py

bench: $(VENV)/.bench ## side by side with the bare relay and with peers; ARGS="--quick" for a short look
	$(BIN)/python -m bench $(ARGS)

fmt: $(VENV)/.test ## format, and fix what can be fixed
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

lock: $(VENV)/.made ## pin the newest versions that pyproject.toml allows
	$(PIP) install $(UV)
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header \
		--no-emit-index-url --group build pyproject.toml --output-file requirements/base.txt
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header \
		--no-emit-index-url --group build --group test --constraint requirements/base.txt pyproject.toml \
		--output-file requirements/test.txt
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header \
		--no-emit-index-url --group build --group bench --constraint requirements/test.txt pyproject.toml \
		--output-file requirements/bench.txt

clean: ## remove what make made
	rm -rf $(VENV) build dist .coverage .coverage.* htmlcov .hypothesis .import_linter_cache .mypy_cache .pytest_cache \
		.ruff_cache src/*.egg-info
	find src tests tools bench -type d -name __pycache__ -prune -exec rm -rf {} +

# --- set-up -----------------------------------------------------------------------------------------------------------

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Trunkline needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1)."; \
		echo "Name another one: make PYTHON=/path/to/python3.12 install"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.base: requirements/base.txt $(VENV)/.made
	@echo "installing what Trunkline needs into $(VENV); pip says nothing meanwhile, which takes about 20 s …"
	$(PIP) install --require-hashes -r requirements/base.txt
	@touch $@

# Editable, so that only a change of pyproject.toml asks for another install. No isolation: setuptools is pinned too.
$(VENV)/.installed: pyproject.toml $(VENV)/.base
	$(PIP) install --no-deps --no-build-isolation --editable .
	@# The first start need not compile, nor any start where Python may not write.
	$(BIN)/python -m compileall -q src
	@touch $@

$(VENV)/.test: requirements/test.txt $(VENV)/.installed
	$(PIP) install --require-hashes -r requirements/test.txt
	@touch $@

$(VENV)/.bench: requirements/bench.txt $(VENV)/.installed
	$(PIP) install --require-hashes -r requirements/bench.txt
	@touch $@
