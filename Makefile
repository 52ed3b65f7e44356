# Two commands do everything on a fresh machine with Python 3.10 or newer, venv and a C compiler:
#   make demo    install, then train, kill, resume and compare with S4 checkpoints
#   make test    install, then run the tests
# `make help` lists the rest.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
NATIVE_PYTHON ?= $(firstword $(wildcard .venv/bin/python .venv-dev/bin/python) python3)
CMAKE ?= $(firstword $(wildcard $(dir $(NATIVE_PYTHON))cmake) cmake)
# Pinned for development and the demo; users bring their own torch.
TORCH ?= torch==2.13.0
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
SOURCES := pyproject.toml CMakeLists.txt $(shell find s4core s4weights s4_lightning s4_accelerate -name '*.py' -o -name '*.c' -o -name '*.h' -o -name '*.cu*')
PACKAGES := s4weights s4core s4_lightning s4_accelerate
LINTED := $(PACKAGES) tests bench examples ami

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

.PHONY: soak-accelerate
soak-accelerate: $(VENV)/.dev ## kill Accelerate and Trainer runs at every write, many times; minutes
	S4_SOAK=1 $(BIN)/pytest tests/accelerate/test_killed.py tests/hf/test_hf_killed.py --timeout=3600

.PHONY: soak-kill
soak-kill: $(VENV)/.dev ## kill a saving process at every store call, on local disk and S3: many hundred kills
	S4_SOAK=1 $(BIN)/pytest tests/test_killed.py --timeout=7200

.PHONY: fault-matrix
fault-matrix: $(VENV)/.dev ## every fault of the network against every request: bench/results/fault-matrix.md
	PYTHONPATH=tests $(BIN)/python tests/fault_matrix.py bench/results/fault-matrix.md

.PHONY: bench-stores
bench-stores: $(VENV)/.dev ## S3 clients beside each other: MB/s and CPU seconds per GiB
	$(PIP_INSTALL) s3fs s3torchconnector
	$(BIN)/python bench/stores.py

.PHONY: test-slow
test-slow: $(VENV)/.dev ## several processes, real kills, whole trainings; minutes
	$(BIN)/pytest -m "slow and not deploy"

.PHONY: lint
lint: $(VENV)/.dev ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: native
# Renamed into place: a process that has the old file mapped keeps it.
native: ## build the C codecs in place, into s4core/codecs/, for work on a checkout (PYTHONPATH=.)
	$(CMAKE) -S . -B build/native -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE=$(abspath $(shell command -v $(NATIVE_PYTHON)))
	$(CMAKE) --build build/native
	cp build/native/_native.abi3.so s4core/codecs/_native.abi3.so.new
	mv s4core/codecs/_native.abi3.so.new s4core/codecs/_native.abi3.so

DEPLOY_PACKAGES = debootstrap systemd-container packer openssl openssh-client
DEPLOY_PROGRAMS = debootstrap systemd-nspawn packer openssl ssh-keygen

# Their own environments: ministack and checkov each pin an AWS client.
.venv-deploy/.installed: tests/deploy/requirements.txt
	$(PYTHON) -m venv .venv-deploy
	.venv-deploy/bin/pip install -q -r $<
	touch $@

.venv-checkov/.installed: tests/deploy/requirements-checkov.txt
	$(PYTHON) -m venv .venv-checkov
	.venv-checkov/bin/pip install -q -r $<
	touch $@

.PHONY: test-deploy
test-deploy: $(VENV)/.dev .venv-deploy/.installed .venv-checkov/.installed ## template, image build and unit, under a real systemd (root, Debian); minutes
	for program in $(DEPLOY_PROGRAMS); do command -v $$program >/dev/null || exec \
	    apt-get install -y --no-install-recommends $(DEPLOY_PACKAGES); done
	$(BIN)/pip install -q python-hcl2 pyyaml
	$(BIN)/pytest -m deploy tests/deploy

.PHONY: load-health
load-health: $(VENV)/.dev ## 1,000 health requests a second for 30 s beside 200 slow clients
	$(BIN)/python tests/runner/load_health.py --seconds 30 --rate 1000 --slow 200

.PHONY: soak-lightning
soak-lightning: $(VENV)/.dev ## a training of two ranks killed 30 times loses nothing
	$(BIN)/python tests/lightning/soak.py --kills 30 --ranks 2

.PHONY: fuzz-short
fuzz-short: ## the native decoders on damaged input under sanitizers, about 20 s
	$(MAKE) -C fuzz short

.PHONY: bench
bench: $(VENV)/.dev ## bits per element on the corpus, beside peers
	$(PIP_INSTALL) '.[bench]'
	$(BIN)/python bench/corpus.py

.PHONY: clean
clean: ## remove what was built
	rm -rf build dist .venv .pytest_cache .mypy_cache .ruff_cache demo-run
