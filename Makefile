# On a fresh machine: `make demo` runs the main job, `make test` passes the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check bench bench-serve soak clean

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("bcd4rec needs Python 3.11 or newer; set PYTHON=python3.11") if sys.version_info < (3, 11) else 0'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(READY)  ## simulate a log, prepare it, compare policies, write demo/report.html
	$(BIN)/bcd4rec demo --out demo --force

test: $(READY)  ## every test; under ten minutes on two cores
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(READY)  ## style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_imports.py

bench: $(READY)  ## speed as ratios to a named reference measured in the same run
	$(BIN)/python -m bench

bench-serve: $(READY)  ## requests a second and latencies of a server on this machine
	$(BIN)/python -m bench.serving
	$(BIN)/python -m bench.workers

SECONDS ?= 600
RATE ?= 500
soak: $(READY)  ## a server under load while it is killed, its database stops and policies are reloaded; SECONDS=60 RATE=200
	$(BIN)/python -m bench.soak --seconds $(SECONDS) --rate $(RATE)

clean:
	rm -rf $(VENV) demo build dist src/*.egg-info
