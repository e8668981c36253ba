# Two commands are enough on a fresh machine: `make up` and `make test`. Everything they need is made here.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes

.DEFAULT_GOAL := help
.PHONY: help up test test-real check lint types imports prove bench requirements clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: $(VENV)/.base ## start everything on this machine and play the demo
	@$(BIN)/holdfast up

# Four processes on two cores: many tests wait for a lease, a signal or the end of a process. Bytecode is kept whatever the
# surroundings say, or each of the hundreds of processes that tests start would compile everything anew.
test: $(VENV)/.dev ## run every test (starts its own Postgres)
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 4 --dist worksteal

test-real: $(VENV)/.dev ## the export engine against a real Trino (fetches it once, 0.9 GB; needs mvn)
	@HOLDFAST_TEST_REAL=1 $(BIN)/python -m pytest tests/real

check: lint types imports ## what CI checks beside the tests

lint: $(VENV)/.dev ## style and formatting
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(VENV)/.dev ## types, strictly
	@$(BIN)/mypy

imports: $(VENV)/.dev ## who may import whom
	@$(BIN)/lint-imports

prove: $(VENV)/.dev $(VENV)/.prove ## schedules, real processes, recovery times, mutants, TLA+ model: writes proof/results.json
	@HOLDFAST_TEST_EVERYTHING=1 $(BIN)/python -m pytest tests/faults/test_every_crash_point.py
	@$(BIN)/python -m proof.prove

bench: $(VENV)/.dev $(VENV)/.bench ## Holdfast beside its peers: writes benchmarks/results.json
	@$(BIN)/python -m benchmarks.run
	@$(BIN)/python -m benchmarks.duckdb_copy --rounds 1 --write
	@$(BIN)/python -m benchmarks.duckdb_copy --text --write
	@$(BIN)/python -m benchmarks.exports --rounds 1 --write
	@$(BIN)/python -m benchmarks.submitted --write
	@$(BIN)/python -m benchmarks.page

requirements: ## compile the pinned requirements again (needs uv)
	@for name in base dev bench prove; do \
	  uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	    requirements/$$name.in -o requirements/$$name.txt; done

clean: ## remove the virtual environment and the embedded Postgres's data
	rm -rf $(VENV) .holdfast .holdfast-demo

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Holdfast needs Python 3.11 or newer; say which with: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.base: requirements/base.txt pyproject.toml | $(VENV)/bin/python
	@echo "Installing into $(VENV) …"
	@$(PIP) -r requirements/base.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.base
	@$(PIP) -r requirements/dev.txt
	@touch $@

$(VENV)/.bench $(VENV)/.prove: $(VENV)/.%: requirements/%.txt $(VENV)/.base
	@$(PIP) -r requirements/$*.txt $(if $(filter prove,$*),--no-deps)
	@touch $@
