# Two commands are enough: `make demo` shows the product at work, `make test` checks all of it.
# Both set up the environment on their first run.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
# Arguments of the demo, for example: make demo DEMO_ARGS="--days 30 --json"
DEMO_ARGS ?=
# Arguments of pytest, for example: make test PYTEST_ARGS="tests/unit -x"
PYTEST_ARGS ?=
# Processes of the test run, for a machine with two cores: tests wait for much. Each that meets a Spark test starts one
# JVM and shares it among its tests.
PYTEST_WORKERS ?= 3
# The release of PySpark for `make compat`: 3.5, 4.0, ..., or all.
SPARK ?= all
# Seeds of the nightly simulation.
SEEDS ?= 10000

BIN := $(VENV)/bin
STAMP := $(VENV)/.coord-control-installed
DEMO_STAMP := $(VENV)/.coord-control-demo
# Nothing here talks to another machine: Spark binds to the loopback address.
SPARK_ENV := SPARK_LOCAL_IP=127.0.0.1

.PHONY: help setup requirements test-requirements demo test connectors airflow azurite check format-check format lint types imports docs \
	compat coverage simulate mutations kill-long nightly pictures bench clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' Makefile

requirements: ## check for Python and Java, and name the command that installs what is missing
	@bash scripts/requirements "$(PYTHON)" >&2

setup: requirements $(STAMP) ## create the virtual environment and install everything into it

test-requirements: ## as requirements, and for Chromium and Prometheus, which the tests of pages, dashboards and alerts run
	@bash scripts/requirements "$(PYTHON)" tests >&2

# To standard error: standard output is for what a target is run for (make demo DEMO_ARGS=--json).
# Order-only: the checks come first, but do not make the environment out of date.
$(STAMP): pyproject.toml scripts/setup | requirements
	@bash scripts/setup "$(PYTHON)" "$(VENV)" dev,demo >&2
	@touch $@

$(DEMO_STAMP): pyproject.toml scripts/setup | requirements
	@bash scripts/setup "$(PYTHON)" "$(VENV)" demo >&2
	@touch $@

# The demo needs none of the developers' tools.
demo: requirements $(if $(wildcard $(STAMP)),$(STAMP),$(DEMO_STAMP)) ## a year of flights through a coordinated streaming job
	@$(SPARK_ENV) $(BIN)/python -m examples.flights $(DEMO_ARGS)

# The tests come last, so that the last line of all is the closing line of pytest. Its tiers run in one go, cheap ones
# first (tests/conftest.py orders them); the tests of a file stay in one process.
test: test-requirements setup check ## static checks, then every tier of tests
	@$(BIN)/python -m scripts.connectors $(if $(filter required,$(COORD_CONNECTORS)),,--optional)
	@$(BIN)/python -m scripts.airflow_env $(if $(filter required,$(COORD_AIRFLOW)),,--optional)
	@$(SPARK_ENV) $(BIN)/python -m tests.jvm
	@$(SPARK_ENV) $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

connectors: setup ## fetch the jars for the tests of connectors (Kafka, S3, HDFS), once, through mvn
	@$(BIN)/python -m scripts.connectors

airflow: setup ## make the environment in which the tests of the Airflow library run Airflow, once, through pip
	@$(BIN)/python -m scripts.airflow_env

azurite: setup ## fetch the emulator of Azure's storage for the nightly tests, once, through npm
	@$(BIN)/python -m scripts.azurite

check: format-check lint types imports docs ## the static checks alone

format-check: setup
	@$(BIN)/ruff format --check .

format: setup ## format the sources in place
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix-only --quiet .

lint: setup ## ruff
	@$(BIN)/ruff check .

types: setup ## mypy --strict
	@$(BIN)/mypy

imports: setup ## the import contracts of pyproject.toml
	@$(BIN)/lint-imports --no-logo

docs: setup ## the documentation as a site, in build/docs; every public name has to say something
	@$(BIN)/python -m scripts.docs_site build/docs

coverage: setup ## the cheap tiers, with branch coverage of the protocol core, which has to be complete
	@$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --cov=coord_control.protocol --cov-branch --cov-report=term-missing \
		--cov-fail-under=100 tests/unit tests/machines $(PYTEST_ARGS)

compat: connectors ## jobs without operators, and table formats, on another PySpark: SPARK=3.5, or all releases
	@$(SPARK_ENV) $(BIN)/python -m scripts.compat "$(SPARK)" $(PYTEST_ARGS)

simulate: setup ## the nightly simulation: SEEDS=10000 histories of crashes
	@$(BIN)/python -m tests.simulation.run --seeds $(SEEDS)

mutations: setup ## break the core on purpose, and see that a test notices each time
	@$(BIN)/python -m tests.mutations.run

kill-long: setup ## kill -9 of drivers on real Spark, COORD_KILLS=24 times
	@$(SPARK_ENV) $(BIN)/python -m tests.jvm
	@$(SPARK_ENV) $(BIN)/python -m pytest -m slow -s tests/kill $(PYTEST_ARGS)

nightly: setup simulate mutations compat azurite ## all that takes long: simulation, mutations, every PySpark, long versions of tests
	@$(SPARK_ENV) $(BIN)/python -m tests.jvm
	@$(SPARK_ENV) $(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

pictures: airflow setup ## the pictures of the documentation, from what the tests of the pages see
	@$(SPARK_ENV) $(BIN)/python -m tests.jvm
	@$(SPARK_ENV) $(BIN)/python -m scripts.pictures

bench: setup ## the benchmarks, as JSON
	@$(SPARK_ENV) $(BIN)/python -m benchmarks

clean: ## remove the environment and what the tools left
	rm -rf "$(VENV)" build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage .coverage.* \
		htmlcov metastore_db derby.log spark-warehouse artifacts test-artifacts savepoint-reports .tmp_dagster_home_* \
		dagster_defs/defs/.local_defs_state
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
