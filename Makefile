# `make` alone lists the targets. All targets use the virtual environment .venv of this checkout.

SHELL := /bin/sh
# The first supported Python on the PATH. Version managers leave names there that do not run, or run another version.
PYTHON ?= $(shell for name in python3.12 python3.11 python3.13 python3; do \
	$$name -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && echo $$name && break; done)
NO_PYTHON = set-up: no Python 3.11, 3.12 or 3.13 found on the PATH; install one, or select one: make PYTHON=/path/to/python3.12
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
# Processes of pytest-xdist per target; each runs whole test files.
WORKERS ?= 2
# Numbers of `make test-full`: killed loads on HDFS and on S3, generated histories of schemas, and random requests to the
# console. Other targets use the smaller defaults of the tests.
HEADRACE_TEST_KILLS ?= 40
HEADRACE_HISTORIES ?= 2000
HEADRACE_CONSOLE_REQUESTS ?= 10000
# Other supported releases of Spark.
SPARKS ?= 3.5.9 4.0.5

export HEADRACE_TEST_PROFILE
# Tests and demo start hundreds of Python processes, which would all compile our modules again.
unexport PYTHONDONTWRITEBYTECODE

PYTEST = $(BIN)/python -m pytest --durations=20 --durations-min=1
SPREAD = -n $(WORKERS) --no-loadscope-reorder --dist loadfile
# Tests with these markers need more than Python and Java, or run long; each marker has a target.
SERVICES := postgres or kcat or node or go or java or kafka or hdfs or hive or pig or yarn or s3 or cluster or container or zig or browser or prometheus or proxies or soak
PROXIES := nginx haproxy liblua5.3-0 libopentracing1 libopentracing-c-wrapper0

.DEFAULT_GOAL := help
.PHONY: help demo demo-cluster ci test test-servers test-spark test-simulation test-fault test-kafka test-hdfs test-s3 \
	test-hive test-pig test-yarn test-cluster test-container test-zig test-browser test-prometheus test-proxies test-sparks test-postgres test-node test-go test-java \
	test-compat test-full equality fuzz fuzz-core fuzz-core-guided check docs hooks format bench setup setup-dev setup-spark \
	wheel clean

help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## run a year of real flights through the pipeline, and check the results
	@$(BIN)/headrace demo --data-dir $(DATA_DIR)
	@command -v headrace >/dev/null || echo '   after: export PATH="$$PWD/$(BIN):$$PATH"'

demo-cluster: setup-dev ## the demo on PostgreSQL, a secured Apache Kafka, YARN, HDFS, HiveServer2 and Pig, downloaded by Maven
	@$(BIN)/python tools/setup_packages.py postgresql
	@$(BIN)/python tools/demo_cluster.py

ci: ## the checks of every change: check and most test targets, in parallel; logs in .make/tiers
	@test -n "$(PYTHON)" || { echo "$(NO_PYTHON)" >&2; exit 2; }
	@HEADRACE_TEST_PROFILE=gate $(PYTHON) tools/run_tiers.py

test: setup-dev ## unit, property and in-process tests, and one real load; PACKAGE=registry runs those of one package
	@$(PYTEST) $(if $(PACKAGE),$(wildcard tests/$(PACKAGE) tests/component/$(PACKAGE))) $(SPREAD) -m "not (servers or spark or simulation or fault or $(SERVICES))" $(PYTEST_ARGUMENTS)

test-servers: setup-dev ## registries, brokers and commands as processes, with Python clients; pip and pre-commit
	@$(PYTEST) $(SPREAD) -m "servers and not (spark or simulation or fault or $(SERVICES))" $(PYTEST_ARGUMENTS)

test-spark: setup-spark ## loads, tables, SQL and `headrace up` with a real Spark and metastore
	@$(PYTEST) $(SPREAD:loadfile=loadgroup) -m "spark and not (fault or $(SERVICES))" $(PYTEST_ARGUMENTS)

test-simulation: setup-dev ## simulated power loss, full disks, interleavings and years of virtual time
	@$(PYTEST) $(SPREAD:loadfile=worksteal) -m "simulation and not (spark or fault or $(SERVICES))" $(PYTEST_ARGUMENTS)

test-fault: setup-spark ## kill loads and parts of `up` at every step; HEADRACE_TEST_ROUNDS=n times each
	@$(PYTEST) $(SPREAD) -m "fault and not ($(SERVICES))" $(PYTEST_ARGUMENTS)

test-kafka: setup-spark ## the loader with an Apache Kafka broker from Maven, and the bundled broker with kcat (installed as root on Debian)
	@$(BIN)/python tools/setup_packages.py kcat || echo "its tests are skipped"
	@$(PYTEST) -m "kafka or kcat" $(PYTEST_ARGUMENTS)

# The next two take about ten minutes each. Run them after changes of the loader; `make test-full` kills ten times as many
# loads.
test-hdfs: setup-spark ## the loader on an HDFS from Maven; kills HEADRACE_TEST_KILLS=n loads
	@$(PYTEST) -m hdfs $(PYTEST_ARGUMENTS)

test-s3: setup-spark ## the loader on a bucket, with S3A from Maven; kills HEADRACE_TEST_KILLS=n loads
	@$(PYTEST) -m s3 $(PYTEST_ARGUMENTS)

test-hive: setup-spark ## tables in a HiveServer2 from Maven (250 MB). Not in `make ci`
	@$(PYTEST) -m hive $(PYTEST_ARGUMENTS)

test-pig: setup-spark ## files and tables in Pig from Maven (200 MB). Not in `make ci`
	@$(PYTEST) -m pig $(PYTEST_ARGUMENTS)

test-yarn: setup-spark ## loads on YARN and HDFS from Maven, with a packed environment. Not in `make ci`
	@$(PYTEST) -m yarn $(PYTEST_ARGUMENTS)

test-cluster: setup-spark ## `make demo-cluster`, in fifteen minutes, and that it leaves no process. Not in `make ci`
	@$(BIN)/python tools/setup_packages.py postgresql
	@$(PYTEST) -m cluster $(PYTEST_ARGUMENTS)

test-container: setup-dev ## the Dockerfile's image in docker, podman or buildah; without them, its steps alone. Not in `make ci`
	@$(PYTEST) -m container $(PYTEST_ARGUMENTS)

test-zig: setup-dev ## wheels for both processors, and set-up without a C compiler, with ziglang from pip. Not in `make ci`
	@$(PYTEST) -m zig $(PYTEST_ARGUMENTS)

test-browser: setup-dev ## the console's pages in Debian's Chromium (installed as root on Debian). Not in `make ci`
	@$(BIN)/python tools/setup_packages.py chromium
	@$(PYTEST) -m browser $(PYTEST_ARGUMENTS)

test-prometheus: setup-dev ## the examples for Prometheus with its own programs, downloaded from Debian and not installed. Not in `make ci`
	@$(BIN)/python tools/setup_packages.py --unpack .make/prometheus prometheus prometheus-alertmanager || echo "its tests are skipped"
	@$(PYTEST) -m prometheus $(PYTEST_ARGUMENTS)

test-proxies: setup-dev ## the examples of nginx and HAProxy in front of gateways, downloaded from Debian and not installed. Not in `make ci`
	@$(BIN)/python tools/setup_packages.py --unpack .make/proxies $(PROXIES) || echo "its tests are skipped"
	@$(PYTEST) -m proxies $(PYTEST_ARGUMENTS)

test-sparks: setup-dev ## loads, tables and views with other releases of Spark, in .make/spark-RELEASE; SPARKS="…". Not in `make ci`
	@for release in $(SPARKS); do \
	  echo "== Spark $$release"; $(BIN)/python tools/spark_environment.py $$release \
	  && .make/spark-$$release/bin/python -m pytest tests/component/everything/test_load_tables.py \
    tests/component/spark/test_latest_view.py $(PYTEST_ARGUMENTS) || exit 1; done

test-postgres: setup-dev ## the registry on PostgreSQL (installed as root on Debian)
	@$(BIN)/python tools/setup_packages.py postgresql
	@$(PYTEST) $(SPREAD) -m postgres $(PYTEST_ARGUMENTS)

test-node: setup-dev ## registry and broker with Node clients from npm
	@$(PYTEST) -m node $(PYTEST_ARGUMENTS)

test-go: setup-dev ## the broker with franz-go, downloaded and compiled once. Not in `make ci`
	@$(PYTEST) -m go $(PYTEST_ARGUMENTS)

test-java: setup-dev ## Java clients of Confluent and Kafka, schema classes, and Oozie's schemas, from Maven
	@$(PYTEST) -m java $(PYTEST_ARGUMENTS)

test-compat: setup-dev ## compare the compatibility check and reader schemas with Avro Java on 20,000 pairs; PAIRS=n, SEED=n repeats a run
	@HEADRACE_COMPAT_PAIRS=$(PAIRS) HEADRACE_COMPAT_SEED=$(SEED) $(PYTEST) -s \
	  tests/compat/test_avro_java.py tests/compat/test_reading.py tests/avro_codec/test_resolve_avro_java.py $(PYTEST_ARGUMENTS)

equality: setup-dev ## compare rows of the core, the reference and Avro Java on CASES=n generated histories and messages
	@HEADRACE_EQUALITY_CASES=$$(($(CASES) / 2)) $(PYTEST) tests/component/java/test_loader_task_avro_java.py $(PYTEST_ARGUMENTS)

fuzz: setup-dev ## send generated requests to the registry, for minutes; FUZZ_EXAMPLES=n of each kind
	@HEADRACE_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(PYTEST) tests/component/registry/test_fuzz.py $(PYTEST_ARGUMENTS)

fuzz-core: setup-dev ## run the core on mutated batches with sanitizers, for SECONDS=n; SEED=n repeats a run
	@PYTHONPATH=tests $(BIN)/python tests/support/loader/core_fuzz.py $(SECONDS) $(SEED)

test-full: setup-spark ## all tests, including those that `make ci` omits (cluster, container, go, hdfs, hive, pig, prometheus, proxies, yarn, s3, zig, browser, soak), with 40 kills each on HDFS and S3 and 2,000 histories of schemas (HEADRACE_TEST_KILLS=n, HEADRACE_HISTORIES=n); then test-sparks
	@$(BIN)/python tools/setup_packages.py postgresql kcat || echo "their tests are skipped"
	@$(BIN)/python tools/setup_packages.py --unpack .make/prometheus prometheus prometheus-alertmanager || echo "its tests are skipped"
	@$(BIN)/python tools/setup_packages.py --unpack .make/proxies $(PROXIES) || echo "its tests are skipped"
	@HEADRACE_TEST_KILLS=$(HEADRACE_TEST_KILLS) HEADRACE_HISTORIES=$(HEADRACE_HISTORIES) HEADRACE_CONSOLE_REQUESTS=$(HEADRACE_CONSOLE_REQUESTS) HEADRACE_TEST_PROFILE=full $(PYTEST) $(PYTEST_ARGUMENTS)
	@$(MAKE) --no-print-directory test-sparks

fuzz-core-guided: setup-dev ## the same with libFuzzer, which needs clang; stores inputs with new coverage
	@PYTHONPATH=tests $(BIN)/python tests/support/loader/core_guided_fuzz.py $(SECONDS)

check: setup-dev ## format, lint, types and plain English
	@$(BIN)/ruff format --check --quiet . || { echo "run: make format"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/python tools/plain_words.py --quiet

docs: setup-dev ## build the documentation as a site in build/site, with the API from docstrings; broken links are errors
	@test -x .make/docs/bin/mkdocs || $(PYTHON) -m venv .make/docs
	@.make/docs/bin/python -m pip install --quiet --disable-pip-version-check -r tools/docs-requirements.txt
	@NO_MKDOCS_2_WARNING=1 .make/docs/bin/python tools/build_docs.py && echo "open build/site/index.html"

format: setup-dev ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: setup-dev ## measure the rates of each part and of baselines in the same run
	@for name in $(basename $(notdir $(wildcard bench/*.py))); do \
	  case $$name in __init__) ;; *) echo "== bench.$$name"; $(BIN)/python -m bench.$$name || exit 1;; esac; done

setup: ## create the virtual environment for the demo
	@test -n "$(PYTHON)" || { echo "$(NO_PYTHON)" >&2; exit 2; }
	@$(PYTHON) tools/setup_environment.py demo $(if $(filter setup,$(MAKECMDGOALS)),--next)

hooks: setup-dev ## run `make check` before each commit, with pre-commit
	@$(BIN)/pre-commit install

setup-dev: ## create the virtual environment with the development tools
	@test -n "$(PYTHON)" || { echo "$(NO_PYTHON)" >&2; exit 2; }
	@$(PYTHON) tools/setup_environment.py dev

setup-spark: setup-dev ## the same, and archive Spark's classes, which halves its start time
	@$(BIN)/python tools/setup_environment.py spark

wheel: setup-dev ## build wheels for Linux on x86-64 and aarch64 in dist/, with PyPI's ziglang
	@$(BIN)/python tools/build_wheels.py

clean: ## delete the virtual environment and all generated files
	rm -rf .venv .make build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
