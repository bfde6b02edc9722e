# Every target prepares what it needs: a machine with Python 3.11+ and make is enough.
#   make demo     the main job, with live progress and a picture       make test    linters and all tests
#   make bench    speed, with peers in the same run                    make check   the linters alone
#   make reproduce  the papers' figures, checked against their claims  make docs    the documentation as a site
#   make suites   the joins of benchmarks that others know, with rivals; makes docs/benchmarks.md of the figures
#   make chaos    kill a Spark join's parts; every pair stays exactly once
#   make simulate  whole pipelines by seeds, with faults at any step: the same seed is the same run
#   make soak     the same for hours, out of Kafka, with state in S3: exact, and nothing grows
#   make conformance  every operator through every suite, by the thousands; ARGS="--cases 2000 --jobs 2"
#   make signals  stop joins at random moments; nothing stays behind   make bounds  conformance, every index checked
#   make kills    kill commands at random moments; what is written is whole, and what was spilled is swept
#   make memory   every verb in its budget, as the system counts
#   make fuzz     feed every parser with what it does not expect       make bits    flip bits on disk; each is found, or harmless
#   make servers  Kafka, S3 and PostgreSQL here, to try things with    make versions  every verb on other versions of PySpark
#   make setup    only prepare .venv                                   make format  let ruff lay out the code
#   make release  build dist/, and run the README's examples with the wheel in an empty environment
#   make lock     choose new versions for requirements.lock            make clean   remove what was generated
# ARGS passes options on: make bench ARGS="inmemory --json out.json".  PYTHON chooses the interpreter.

PYTHON ?=
ARGS ?=
BIN := .venv/bin
STAMP := .venv/.ready
export MPLBACKEND ?= Agg

.PHONY: demo test docs chaos soak simulate conformance servers versions signals kills memory fuzz bits bounds check setup bench suites reproduce release format lock clean java browser
.DEFAULT_GOAL := test

setup: $(STAMP)

# The stamp holds the folder's path: an environment that was copied or moved is made anew, its scripts would point elsewhere.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(shell pwd))
.PHONY: $(STAMP)
endif
$(STAMP): pyproject.toml requirements.lock scripts/setup.sh scripts/java.sh scripts/browser.sh scripts/servers.sh
	@PYTHON="$(PYTHON)" sh scripts/setup.sh

java: setup
	@sh scripts/java.sh check

browser: setup
	@sh scripts/browser.sh check

check: setup
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy --no-error-summary
	$(BIN)/lint-imports --no-logo

# The linters beside the tests: mypy takes half a minute of one processor. What they say comes last, and either may fail.
test: setup java browser
	@said=$$(mktemp); linters=; trap 'rm -f "$$said"; kill $$linters 2>/dev/null' EXIT; trap 'exit 1' HUP INT TERM; \
	$(MAKE) --no-print-directory check >"$$said" 2>&1 & linters=$$!; \
	$(BIN)/pytest -q -n 2 --dist worksteal $(ARGS); tests=$$?; \
	wait $$linters; lint=$$?; cat "$$said"; exit $$((tests ? tests : lint))

chaos: setup java
	PYTHONPATH=tests $(BIN)/python -W ignore -m chaos $(ARGS)

simulate: setup
	PYTHONPATH=tests $(BIN)/python -W ignore -m simulate $(ARGS)

conformance: setup
	PYTHONPATH=tests $(BIN)/python -W ignore -m conformance $(ARGS)

soak: setup java
	PYTHONPATH=tests $(BIN)/python -W ignore -m chaos.soak $(ARGS)

servers: setup java
	@PYTHONPATH=tests $(BIN)/python -m servers $(ARGS)

versions: setup java
	@sh scripts/versions.sh $(VERSIONS)

signals: setup
	$(BIN)/python tests/stress/signals.py $(ARGS)

kills: setup
	PYTHONPATH=tests $(BIN)/python -W ignore tests/stress/kills.py $(ARGS)

memory: setup
	PYTHONPATH=tests:. $(BIN)/python -W ignore tests/stress/memory.py $(ARGS)

fuzz: setup
	PYTHONPATH=tests $(BIN)/python -m fuzz $(ARGS)

bits: setup
	PYTHONPATH=tests $(BIN)/python -W ignore tests/stress/bits.py $(ARGS)

# In a cache of its own: Numba would take kernels from another that were compiled without checks.
bounds: setup
	cache=$$(mktemp -d) && trap 'rm -rf "$$cache"' EXIT && trap 'exit 1' HUP INT TERM && \
	NUMBA_BOUNDSCHECK=1 WATERSMEET_CACHE_DIR="$$cache" $(BIN)/pytest -q -n 2 --dist worksteal tests/conformance $(ARGS)

demo: setup java
	$(BIN)/watersmeet demo $(ARGS)

bench: setup java
	$(BIN)/watersmeet bench --peers $(ARGS)

suites: setup java
	$(BIN)/watersmeet bench suite --peers --json benchmarks/results $(or $(ARGS),all)
	$(BIN)/python -m benchmarks.suites.page

reproduce: setup
	$(BIN)/watersmeet reproduce $(ARGS)

docs: setup
	$(BIN)/python -m website

release: setup
	@PYTHON="$(PYTHON)" sh scripts/release.sh

format: setup
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

lock:
	@PYTHON="$(PYTHON)" sh scripts/lock.sh

clean:
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
