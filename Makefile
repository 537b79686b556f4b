# SpecExit: `make help` lists the targets. Each one makes the environment first if needed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
RUN := OMP_NUM_THREADS=1 $(VENV)/bin/python
# vLLM on a CPU wants the OpenMP runtime of its wheel to be loaded first
RUN_FAST := LD_PRELOAD=$(CURDIR)/$(VENV)/lib/libiomp5.so $(RUN)
DEMO_OUT ?= runs/demo
# Two workers, each takes the next file when it is free: long files first.
PYTEST := -m pytest -n 2 --dist loadfile --no-loadscope-reorder
# whole pipelines, the model runner of GPUs under Triton's interpreter, a server with two front ends,
# signals recorded live
SLOW := tests/pipeline $(addprefix tests/engine/,test_v2.py test_server.py test_replay_live.py)

.DEFAULT_GOAL := help
.PHONY: help setup demo test testall check format bench docs clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 10

setup:  ## make .venv with the pinned CPU environment
	@if [ -z "$(PYTHON)" ]; then echo "setup: no Python found; install Python 3.11" >&2; exit 1; fi
	@$(PYTHON) configs/environment/setup.py $(VENV)

demo: setup  ## the whole pipeline on the built-in reasoner, with a table and a page
	$(RUN_FAST) -m specexit.cli demo --out $(DEMO_OUT)

test: setup  ## the tests, without the slowest
	$(RUN) $(PYTEST) tests/engine tests/unit $(addprefix --ignore=,$(SLOW)) $(ARGS)

testall: setup  ## every test
	$(RUN) $(PYTEST) $(SLOW) tests/engine tests/unit $(ARGS)

check: setup  ## format, lint and types
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

format: setup  ## format the sources
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

bench: setup  ## accuracy, tokens and latency of every system on the built-in reasoner
	$(RUN_FAST) -m specexit.cli bench run --config configs/bench/tiny.yaml --json runs/bench.json

docs: setup  ## check that the commands in README and docs exist and parse
	$(RUN) -m pytest tests/unit/test_docs.py

clean:  ## remove what runs and tests left
	rm -rf runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
