# make demo, make test: each does all its set-up; a fresh machine needs Python 3.11+ and make.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
SOURCES := $(shell find hpx passes tools -not -path '*/__pycache__*' -not -path 'tools/bench*')
DEMO := build/demo

# The checkout has a folder hpx/ without hpx.passes: Python must not look there, but at what is
# installed.
export PYTHONSAFEPATH := 1

.PHONY: help demo test lint types wheel browser pytest clean

help:
	@echo "make demo    plan a 671B mixture of experts on 256 ranks, explain and draw it; files in $(DEMO)/"
	@echo "make test    style, types, the wheel in a clean environment, tests"
	@echo "make lint, make types, make wheel, make pytest [ARGS=...]    one of these alone"

$(VENV)/dependencies: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "hpx needs Python 3.11 or later on the PATH" >&2; exit 2; }
	@echo "== setting up $(VENV) (some minutes, once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt torch setuptools
	$(PIP) install -c constraints.txt --no-build-isolation ".[dev,hf]"
	@touch $@

$(VENV)/installed: $(VENV)/dependencies $(SOURCES) setup.py README.md LICENSE
	@rm -rf build/lib build/bdist.*
	$(PIP) install --no-deps --no-build-isolation --force-reinstall .
	@touch $@

demo: $(VENV)/installed
	@bash docs/examples/demo.sh $(BIN) $(DEMO)

test: lint types wheel pytest

lint: $(VENV)/dependencies
	@echo "== style"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy takes what lies in its folder for the package of that name, so it runs where only the tests
# and benchmarks lie.
types: $(VENV)/installed
	@echo "== types"
	@mkdir -p build/types && ln -sfn ../../tests build/types/tests
	@ln -sfn ../../tools/bench build/types/bench
	cd build/types && ../../$(BIN)/mypy --config-file ../../pyproject.toml \
		-p hpx -p tests $(if $(wildcard tools/bench/*.py),-p bench)

wheel: $(VENV)/dependencies
	@echo "== wheel"
	@bash tests/smoke.sh $(BIN)/python

# The page of hpx-viz is tested in a real browser. Without one those tests are skipped, and say so.
BROWSERS := chromium chromium-browser google-chrome google-chrome-stable chrome

browser:
	@for name in $(BROWSERS); do command -v $$name >/dev/null && exit 0; done; \
	echo "== setting up a browser for the tests of the page (once)"; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		export DEBIAN_FRONTEND=noninteractive; \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends \
			chromium fonts-dejavu-core; } >/dev/null || \
		echo "== NO BROWSER: apt-get cannot install chromium; its tests will be skipped"; \
	else \
		echo "== NO BROWSER: install chromium (as root: apt-get install chromium);" \
			"its tests will be skipped"; \
	fi

pytest: $(VENV)/installed browser
	@echo "== tests"
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
