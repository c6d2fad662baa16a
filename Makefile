# `make` alone lists the targets. Everything happens in the virtual environment .venv of this checkout.

SHELL := /bin/sh
# The first Python on the PATH that runs and fits; version managers leave names there that do neither.
PYTHON ?= $(shell for name in python3.12 python3.11 python3.13 python3; do \
	$$name -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && echo $$name && break; done)
NO_PYTHON = set-up: no Python 3.11, 3.12 or 3.13 found on the PATH; install one or name it: make PYTHON=/path/to/python3.12
BIN := .venv/bin
DATA_DIR ?= headrace-data/demo
# One package's tests: make test PACKAGE=registry. The Hypothesis profile: hourly, gate or full (tests/conftest.py).
PACKAGE ?=
HEADRACE_TEST_PROFILE ?= hourly
PYTEST_ARGUMENTS ?=
FUZZ_EXAMPLES ?= 50
SECONDS ?= 600
PAIRS ?= 20000
CASES ?= 100000
SEED ?= $(shell date +%s)
# Processes that a target's tests are spread over, file by file.
WORKERS ?= 2
# Of `make test-full`, which is the long run: loads that are killed, on HDFS and on S3 each, and generated histories of
# schemas. Targets of one kind of test have their tests' own, smaller numbers.
HEADRACE_TEST_KILLS ?= 40
HEADRACE_HISTORIES ?= 2000
# Releases of Spark that clusters have, beside ours.
SPARKS ?= 3.5.9 4.0.5

export HEADRACE_TEST_PROFILE
# Tests and demo start hundreds of Pythons, each of which would compile every module of ours again.
unexport PYTHONDONTWRITEBYTECODE

PYTEST = $(BIN)/python -m pytest --durations=20 --durations-min=1
SPREAD = -n $(WORKERS) --no-loadscope-reorder --dist loadfile
# Tests of these markers need more than Python and Java, or run for long; each has a target of its own.
SERVICES := postgres or kcat or node or go or java or kafka or hdfs or hive or pig or yarn or s3 or cluster or container or zig or soak

.DEFAULT_GOAL := help
.PHONY: help demo demo-cluster ci test test-servers test-spark test-simulation test-fault test-kafka test-hdfs test-s3 \
	test-hive test-pig test-yarn test-cluster test-container test-zig test-sparks test-postgres test-node test-go test-java \
	test-compat test-full equality fuzz fuzz-core fuzz-core-guided check hooks format bench setup setup-dev setup-spark \
	wheel clean

help: ## show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## a year of real flights from producer to Hive table, checked against the data set
	@$(BIN)/headrace demo --data-dir $(DATA_DIR)
	@command -v headrace >/dev/null || echo '   after: export PATH="$$PWD/$(BIN):$$PATH"'

demo-cluster: setup-dev ## the same through PostgreSQL, a secured Apache Kafka, YARN, HDFS, HiveServer2 and Pig, which Maven fetches
	@$(BIN)/python tools/setup_packages.py postgresql
	@$(BIN)/python tools/demo_cluster.py

ci: ## the gate of every change: check and most test targets, two cores busy at a time; logs in .make/tiers
	@test -n "$(PYTHON)" || { echo "$(NO_PYTHON)" >&2; exit 2; }
	@HEADRACE_TEST_PROFILE=gate $(PYTHON) tools/run_tiers.py

test: setup-dev ## the tests of every hour: unit, property and in-process tests, one real load; PACKAGE=registry for one package's
	@$(PYTEST) $(if $(PACKAGE),$(wildcard tests/$(PACKAGE) tests/component/$(PACKAGE))) $(SPREAD) -m "not (servers or spark or simulation or fault or $(SERVICES))" $(PYTEST_ARGUMENTS)

test-servers: setup-dev ## registries, brokers and commands as processes, under Python clients; pip and pre-commit
	@$(PYTEST) $(SPREAD) -m "servers and not (spark or simulation or fault or $(SERVICES))" $(PYTEST_ARGUMENTS)

test-spark: setup-spark ## loads, tables, SQL and `headrace up` on a real Spark and metastore
	@$(PYTEST) $(SPREAD:loadfile=loadgroup) -m "spark and not (fault or $(SERVICES))" $(PYTEST_ARGUMENTS)

test-simulation: setup-dev ## lost power, full disks, interleavings and years of virtual time, simulated
	@$(PYTEST) $(SPREAD) -m "simulation and not (spark or fault or $(SERVICES))" $(PYTEST_ARGUMENTS)

test-fault: setup-spark ## loads and parts of `up` killed at every step; HEADRACE_TEST_ROUNDS=n kills at each
	@$(PYTEST) $(SPREAD) -m "fault and not ($(SERVICES))" $(PYTEST_ARGUMENTS)

test-kafka: setup-spark ## the loader against an Apache Kafka broker, which Maven fetches; the broker under kcat, which as root on Debian is installed when missing
	@$(BIN)/python tools/setup_packages.py kcat || echo "its tests are skipped"
	@$(PYTEST) -m "kafka or kcat" $(PYTEST_ARGUMENTS)

# These two are left to `make test-full`, which kills ten times as many, and to whoever changes the loader: some ten minutes
# each.
test-hdfs: setup-spark ## the loader onto an HDFS, which Maven fetches; HEADRACE_TEST_KILLS=n loads are killed
	@$(PYTEST) -m hdfs $(PYTEST_ARGUMENTS)

test-s3: setup-spark ## the loader into a bucket through S3A, which Maven fetches; HEADRACE_TEST_KILLS=n likewise
	@$(PYTEST) -m s3 $(PYTEST_ARGUMENTS)

test-hive: setup-spark ## tables under HiveServer2, which Maven fetches (250 MB). Not in `make ci`
	@$(PYTEST) -m hive $(PYTEST_ARGUMENTS)

test-pig: setup-spark ## Pig over files and tables, which Maven fetches (200 MB). Not in `make ci`
	@$(PYTEST) -m pig $(PYTEST_ARGUMENTS)

test-yarn: setup-spark ## loads on a YARN over an HDFS, which Maven fetches, from a packed environment. Not in `make ci`
	@$(PYTEST) -m yarn $(PYTEST_ARGUMENTS)

test-cluster: setup-spark ## what `make demo-cluster` does, in some fifteen minutes, and that it leaves nothing running. Not in `make ci`
	@$(BIN)/python tools/setup_packages.py postgresql
	@$(PYTEST) -m cluster $(PYTEST_ARGUMENTS)

test-container: setup-dev ## the Dockerfile's image, built and run by docker, podman or buildah, else its steps alone. Not in `make ci`
	@$(PYTEST) -m container $(PYTEST_ARGUMENTS)

test-zig: setup-dev ## wheels for both processors, and set-up on a machine without a compiler, with the one that pip fetches. Not in `make ci`
	@$(PYTEST) -m zig $(PYTEST_ARGUMENTS)

test-sparks: setup-dev ## loads and their tables with other releases of Spark, each in .make/spark-RELEASE; SPARKS="…". Not in `make ci`
	@for release in $(SPARKS); do \
	  echo "== Spark $$release"; $(BIN)/python tools/spark_environment.py $$release \
	  && .make/spark-$$release/bin/python -m pytest tests/component/everything/test_load_tables.py $(PYTEST_ARGUMENTS) || exit 1; done

test-postgres: setup-dev ## the registry on a PostgreSQL server of its own, which as root on Debian is installed when missing
	@$(BIN)/python tools/setup_packages.py postgresql
	@$(PYTEST) $(SPREAD) -m postgres $(PYTEST_ARGUMENTS)

test-node: setup-dev ## registry and broker under their clients of Node, which npm fetches once
	@$(PYTEST) -m node $(PYTEST_ARGUMENTS)

test-go: setup-dev ## the broker under franz-go, which Go fetches and compiles once. Not in `make ci`
	@$(PYTEST) -m go $(PYTEST_ARGUMENTS)

test-java: setup-dev ## against the Java clients of Confluent and Kafka, schema classes, and Oozie's schemas, which Maven fetches
	@$(PYTEST) -m java $(PYTEST_ARGUMENTS)

test-compat: setup-dev ## the compatibility check against Avro Java on 20,000 pairs; PAIRS=n, SEED=n for the same ones
	@HEADRACE_COMPAT_PAIRS=$(PAIRS) HEADRACE_COMPAT_SEED=$(SEED) $(PYTEST) -s \
	  tests/compat/test_avro_java.py tests/compat/test_reading.py $(PYTEST_ARGUMENTS)

equality: setup-dev ## rows by the core, by the reference and by Avro Java on CASES=n generated histories and messages
	@HEADRACE_EQUALITY_CASES=$$(($(CASES) / 2)) $(PYTEST) tests/component/java/test_loader_task_avro_java.py $(PYTEST_ARGUMENTS)

fuzz: setup-dev ## the registry under made-up requests, for minutes; FUZZ_EXAMPLES=n of each kind
	@HEADRACE_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(PYTEST) tests/component/registry/test_fuzz.py $(PYTEST_ARGUMENTS)

fuzz-core: setup-dev ## the loader's core under mutated batches and sanitizers, for SECONDS=n; SEED=n for the same ones
	@PYTHONPATH=tests $(BIN)/python tests/support/loader/core_fuzz.py $(SECONDS) $(SEED)

test-full: setup-spark ## every test: those of `make ci`, and any marked cluster, container, go, hdfs, hive, pig, yarn, s3, zig or soak, which it leaves out, with 40 kills each on HDFS and S3 and 2,000 histories of schemas (HEADRACE_TEST_KILLS=n, HEADRACE_HISTORIES=n); then test-sparks
	@$(BIN)/python tools/setup_packages.py postgresql kcat || echo "their tests are skipped"
	@HEADRACE_TEST_KILLS=$(HEADRACE_TEST_KILLS) HEADRACE_HISTORIES=$(HEADRACE_HISTORIES) HEADRACE_TEST_PROFILE=full $(PYTEST) $(PYTEST_ARGUMENTS)
	@$(MAKE) --no-print-directory test-sparks

fuzz-core-guided: setup-dev ## the same under libFuzzer, for which clang must be there; what reaches something new is kept
	@PYTHONPATH=tests $(BIN)/python tests/support/loader/core_guided_fuzz.py $(SECONDS)

check: setup-dev ## format, lint and types
	@$(BIN)/ruff format --check --quiet . || { echo "run: make format"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy

format: setup-dev ## put the code into its format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: setup-dev ## rates of each part, beside a baseline in the same run
	@for name in $(basename $(notdir $(wildcard bench/*.py))); do \
	  case $$name in __init__) ;; *) echo "== bench.$$name"; $(BIN)/python -m bench.$$name || exit 1;; esac; done

setup: ## make the virtual environment for the demo
	@test -n "$(PYTHON)" || { echo "$(NO_PYTHON)" >&2; exit 2; }
	@$(PYTHON) tools/setup_environment.py demo $(if $(filter setup,$(MAKECMDGOALS)),--next)

hooks: setup-dev ## run `make check` before each commit of this checkout, by pre-commit
	@$(BIN)/pre-commit install

setup-dev: ## make the virtual environment with the development tools
	@test -n "$(PYTHON)" || { echo "$(NO_PYTHON)" >&2; exit 2; }
	@$(PYTHON) tools/setup_environment.py dev

setup-spark: setup-dev ## the same, and Spark's classes archived so that each start takes half as long
	@$(BIN)/python tools/setup_environment.py spark

wheel: setup-dev ## wheels for Linux on x86-64 and aarch64 in dist/, compiled with PyPI's ziglang
	@$(BIN)/python tools/build_wheels.py

clean: ## remove the virtual environment and everything that was made
	rm -rf .venv .make build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
