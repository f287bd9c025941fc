# Targets for working on seqdiag; `make help` lists them.

PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt $(PIP_ARGS)

.DEFAULT_GOAL := help
.PHONY: help demo setup test check format golden gpu hf-check bench wheel-check clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## Make .venv, install, and answer two questions
	$(BIN)/seqdiag gradflow --arch rnn,lstm,gru
	$(BIN)/seqdiag kvcache --ctx 131072

setup: $(VENV)/.installed-dev ## Make .venv with the dev tools

test: check ## Lint, check types, run the tests, a process on each core
	$(BIN)/python -m pytest -n auto --maxprocesses 8

check: $(VENV)/.installed-dev ## Lint and check types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev ## Format the code and fix what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

golden: $(VENV)/.installed-dev ## Write the golden outputs anew; review the diff
	SEQDIAG_GOLDEN=write $(BIN)/python -m pytest tests/report/test_formats.py

gpu: $(VENV)/.installed-dev ## On a CUDA GPU: check every shipped kernel tile, then time them
	$(BIN)/python -m pytest -m gpu
	$(BIN)/python tests/benchmarks/attention_gpu.py

hf-check: $(VENV)/.installed ## Measure the cache of a tiny model of every type in transformers
	$(INSTALL) --editable '.[hf]'
	$(BIN)/python tests/data/record_cache_bytes.py
	$(BIN)/python tests/data/record_parameters.py

bench: $(VENV)/.installed-dev ## Measure start-up and CPU speed, as ratios, into build/bench/*.csv
	@mkdir -p build/bench
	$(BIN)/python tests/benchmarks/startup.py | tee build/bench/startup.csv
	$(BIN)/python tests/benchmarks/configs.py | tee build/bench/configs.csv
	$(BIN)/python tests/benchmarks/kernels.py | tee build/bench/kernels.csv
	$(BIN)/python tests/benchmarks/scans.py | tee build/bench/scans.csv

wheel-check: $(VENV)/.installed-dev ## Build the wheel and use it from another environment and folder
	rm -rf build/wheel && mkdir -p build/wheel
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheel $(PIP_ARGS) .
	$(PYTHON) -m venv build/wheel/venv
	build/wheel/venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt $(PIP_ARGS) typer rich
	build/wheel/venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps build/wheel/*.whl
	cd / && $(CURDIR)/build/wheel/venv/bin/seqdiag kvcache llama-3.1-8b --ctx 131072

clean: ## Remove what the other targets make
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache .hypothesis

# The pinned torch and triton come first: an open requirement may pull another build. Triton has
# wheels for Linux only, where the project asks for it by itself.
$(VENV)/.torch: .ci/constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: seqdiag needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 1; }
	$(INSTALL) torch
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) --editable '.[dev]'
	@touch $@
