# Two commands do everything on a fresh machine with Python 3.10 or newer, venv and a C compiler:
#   make demo    install, then train, kill, resume and compare with S4 checkpoints
#   make test    install, then run the tests
# `make help` lists the rest.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Pinned for development and the demo; users bring their own torch.
TORCH ?= torch==2.13.0
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
SOURCES := pyproject.toml CMakeLists.txt $(shell find s4core s4weights s4_lightning s4_accelerate -name '*.py' -o -name '*.c' -o -name '*.h' -o -name '*.cu*')
PACKAGES := s4weights s4core s4_lightning s4_accelerate
LINTED := $(PACKAGES) tests bench examples

.DEFAULT_GOAL := help

.PHONY: help
help: ## say what each target does
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 20

$(VENV)/.demo: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) '$(TORCH)' '.[demo]'
	touch $@

$(VENV)/.dev: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) '$(TORCH)' '.[dev]'
	touch $@ $(VENV)/.demo

.PHONY: demo
demo: $(VENV)/.demo ## train with S4 checkpoints, kill, resume, compare bit for bit
	$(BIN)/python examples/lightning_resume.py

.PHONY: test
test: $(VENV)/.dev ## run the tests against the installed package
	$(BIN)/pytest

.PHONY: lint
lint: $(VENV)/.dev ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: native
native: ## build the C extension in place, for work on a checkout (PYTHONPATH=.)
	cmake -S . -B build/inplace -DCMAKE_BUILD_TYPE=Release -DS4_INPLACE=ON
	cmake --build build/inplace

.PHONY: bench
bench: $(VENV)/.dev ## bits per element on the corpus, beside peers
	$(PIP_INSTALL) '.[bench]'
	$(BIN)/python bench/corpus.py

.PHONY: clean
clean: ## remove what was built
	rm -rf build dist .venv .pytest_cache .mypy_cache .ruff_cache demo-run
