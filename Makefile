# Two commands are enough on a fresh machine: `make up` and `make test`. Everything they need is made here.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes

.DEFAULT_GOAL := help
.PHONY: help up test test-more test-repeat test-real test-keda test-postgres-versions check lint types imports prove bench tools docs release-check requirements clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-23s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: $(VENV)/.all ## start everything on this machine and play the demos
	@$(BIN)/holdfast up

# Four processes on two cores: many tests wait for a lease, a signal or the end of a process. Bytecode is kept whatever the
# surroundings say, or each of the hundreds of processes that tests start would compile everything anew.
test: $(VENV)/.dev ## run the tests (starts its own Postgres)
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 4 --dist worksteal

test-more: $(VENV)/.dev ## more repetitions than `make test` has, and the tests that are marked `more`
	@env -u PYTHONDONTWRITEBYTECODE HOLDFAST_TEST_EVERYTHING=1 $(BIN)/python -m pytest -n 4 --dist worksteal \
	  tests/concurrency/test_schedules.py tests/concurrency/test_process_schedules.py \
	  tests/faults/test_every_crash_point.py tests/processes/test_isolated.py
	@env -u PYTHONDONTWRITEBYTECODE HOLDFAST_TEST_EVERYTHING=1 HOLDFAST_FUZZ_EXAMPLES=3 $(BIN)/python -m pytest -n 4 --dist worksteal \
	  -m more

COUNT ?= 100
test-repeat: $(VENV)/.dev ## repeat the tests with several processes or connections COUNT times, to find those that fail rarely
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 4 --dist worksteal --count $(COUNT) -m "races and not more"

test-real: $(VENV)/.dev ## against a real Trino, Spark, REST catalog and Kubernetes API server (fetched or built once; needs mvn, a JDK 17 and go)
	@HOLDFAST_TEST_REAL=1 $(BIN)/python -m pytest tests/real

test-keda: $(VENV)/.dev ## autoscaling with a real KEDA, with a log (built once in 20 minutes; needs go and kubectl)
	@HOLDFAST_TEST_KEDA=1 $(BIN)/python -m pytest -s tests/real/kubernetes/test_keda_scaling.py

test-postgres-versions: $(VENV)/.dev ## the tests of the kernel on Postgres 15 to 18 (fetched once; 10 minutes each)
	@$(BIN)/python -m tests.real.postgres.versions

check: lint types imports ## what CI checks beside the tests

lint: $(VENV)/.dev ## style and formatting
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(VENV)/.dev ## types, strictly, and the types that users see
	@$(BIN)/mypy
	@HOLDFAST_TEST_EVERYTHING=1 $(BIN)/python -m pytest tests/typing

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

TOOLS := $(HOME)/.cache/holdfast-prometheus
tools: $(TOOLS)/usr/bin/promtool ## fetch Prometheus and promtool (a Debian package, unpacked, not installed)

$(TOOLS)/usr/bin/promtool:
	@mkdir -p $(TOOLS) && cd $(TOOLS) && apt-get -qq download prometheus && dpkg-deb -x prometheus_*.deb .

docs: $(VENV)/.docs ## the documentation as a site, in build/site; a broken link is an error
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -j 2 -c docs/site docs build/site
	@echo "build/site/index.html"

release-check: $(VENV)/.dev docs ## build the distributions and the image's steps, and try them in clean environments (needs uv)
	@$(BIN)/python deploy/generate_monitoring.py --check
	@HOLDFAST_TEST_RELEASE=1 $(BIN)/python -m pytest -m "more or not more" tests/packaging tests/deploy
	@$(BIN)/python deploy/release_check.py

requirements: ## compile the pinned requirements again (needs uv)
	@for name in all dev bench prove docs real; do \
	  uv pip compile --quiet $$([ $$name = real ] && echo --no-deps) --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-strip-extras --no-emit-package holdfast-jobs \
	    requirements/$$name.in -o requirements/$$name.txt; done

clean: ## remove the virtual environment, the embedded Postgres's data and the demo's tables
	rm -rf $(VENV) .holdfast .holdfast-demo warehouse

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Holdfast needs Python 3.11 or newer; say which with: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.all: requirements/all.txt pyproject.toml | $(VENV)/bin/python
	@echo "Installing into $(VENV) …"
	@$(PIP) -r requirements/all.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.all
	@$(PIP) -r requirements/dev.txt
	@touch $@

$(VENV)/.bench $(VENV)/.prove $(VENV)/.docs: $(VENV)/.%: requirements/%.txt $(VENV)/.all
	@$(PIP) -r requirements/$*.txt $(if $(filter prove,$*),--no-deps)
	@touch $@
