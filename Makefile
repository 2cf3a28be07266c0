PYTHON ?= python3
STORAGE ?=
PYTEST_ARGS ?=
BENCH_ARGS ?=
MINUTES ?= 10
FUZZ_ARGS ?=
SEED ?=
ROUNDS ?=
WORKERS ?= 2

BIN := .venv/bin
READY := .venv/.ready

# Tests start hundreds of Python processes, and uv installs no bytecode: without it each of them
# compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo up bench bench-merging bench-restore bench-rescale bench-metastore bench-maintenance picture test test-fast mutants fuzz soak lint lock clean

##@ Use it
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## Run the main job on real text and check every count (STORAGE=s3://bucket/prefix for S3)
	@$(BIN)/python -m demo $(if $(STORAGE),--storage $(STORAGE))

up: $(READY) ## Keep the platform running until Ctrl-C: Postgres, Airflow, the streaming job
	@$(BIN)/python -m demo.up $(if $(STORAGE),--storage $(STORAGE))

bench: $(READY) ## Measure Cairn beside native Spark, about an hour (BENCH_ARGS="--workload map --batches 2")
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-merging: $(READY) ## Count files with merging off, within and across checkpoints, beside native Spark
	@$(BIN)/python -m benchmarks.merging $(BENCH_ARGS)

bench-restore: $(READY) ## Measure restoring 1 GB of state, beside native Spark (BENCH_ARGS="--size-mb 100")
	@$(BIN)/python -m benchmarks.restore $(BENCH_ARGS)

bench-rescale: $(READY) ## Count what the subtasks of another parallelism read (BENCH_ARGS="--changes 4:16")
	@$(BIN)/python -m benchmarks.rescale $(BENCH_ARGS)

bench-metastore: $(READY) ## Load the metastore, with the code of an earlier commit beside it (BENCH_ARGS="--quick")
	@$(BIN)/python -m benchmarks.metastore $(BENCH_ARGS)

bench-maintenance: $(READY) ## Measure the maintenance, and a stream beside it (BENCH_ARGS="--quick")
	@$(BIN)/python -m benchmarks.maintenance $(BENCH_ARGS)

picture: $(READY) ## Draw the README's picture from the tables of docs/performance.md
	@$(BIN)/python -m benchmarks.picture

##@ Work on it
setup: $(READY) ## Make .venv with every locked dependency

test: $(READY) ## Check style and types, then run every test (PYTEST_ARGS=… to choose)
	@$(MAKE) --no-print-directory lint
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(PYTEST_ARGS)

test-fast: $(READY) ## Run the tests that start neither Spark nor Airflow: a few minutes
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal \
		-m "not spark and not airflow and not slow" $(PYTEST_ARGS)

mutants: $(READY) ## Break the code on purpose and show which test notices (MUTANTS="part of a name")
	@$(BIN)/python -m tests.mutants $(MUTANTS)

fuzz: $(READY) ## Fuzz readers of bytes, and processors on both engines (MINUTES=10; FUZZ_ARGS="--cases 9 manifest")
	@$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(FUZZ_ARGS)

soak: $(READY) ## Run the model of maintenance at random (MINUTES=60; SEED=… ROUNDS=1 plays a round again)
	@$(BIN)/python -m tests.model.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(ROUNDS),--rounds $(ROUNDS))

lint: $(READY) ## Check style and types only
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --quiet --check
	@$(BIN)/mypy --no-error-summary

lock: $(READY) ## Resolve the dependencies again into requirements/
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --all-extras --group dev --upgrade \
		--custom-compile-command "make lock" pyproject.toml --output-file requirements/lock.txt
	grep -A 9999 '^uv==' requirements/lock.txt | awk 'NR > 1 && /^[a-z]/ {exit} !/# via/' > requirements/uv.txt

clean: ## Remove what was built; .venv too
	rm -rf build dist .venv .mypy_cache .pytest_cache .ruff_cache *.egg-info

$(READY): requirements/lock.txt requirements/uv.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Cairn needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Use make PYTHON=…"; exit 1; }
	@echo "Setting up .venv (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/uv.txt
	@$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements/lock.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@
