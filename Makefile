# `make search` and `make test` do all set-up by themselves; `make help` lists the rest.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup search test test-fast lint format wheel clean

# The interpreter for .venv (3.11, 3.12 or 3.13); empty = the first that fits.
PYTHON ?=
# Asked for torch alone, and only when pip's own configuration finds no CPU build of it.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

# Run as modules: they go on working when the checkout is moved, which scripts with a path in their first line don't.
python := .venv/bin/python
ready := .venv/.ready-$(shell (cat requirements/cpu.lock requirements/dev.lock pyproject.toml; pwd) | sha256sum | cut -c1-16)

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup: $(ready) ## .venv with a real vLLM for CPUs, pinned; does nothing when it is there

$(ready):
	@PYTHON='$(PYTHON)' TORCH_INDEX='$(TORCH_INDEX)' requirements/install.sh $@

search: $(ready) ## tune a tiny model with real vLLM engines on this machine's CPU
	@$(python) -m autotune.cli.main search --space tiny-cpu $(ARGS)

test: $(ready) lint ## lint, then every test, real engines and packaging included
	@$(python) -m pytest $(ARGS)

test-fast: $(ready) ## the tests that start no engine, no Ray and build nothing
	@$(python) -m pytest -m 'not engine and not ray and not slow' $(ARGS)

lint: $(ready) ## formatting, lint rules, types, import layers
	@$(python) -m ruff format --check .
	@$(python) -m ruff check .
	@$(python) -m mypy
	@$(python) -m mypy tests/conftest.py
	@$(python) -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'

format: $(ready) ## rewrite the code as `lint` wants it
	@$(python) -m ruff format .
	@$(python) -m ruff check --fix .

wheel: $(ready) ## dist/*.whl
	@$(python) -m build --wheel --no-isolation

clean: ## everything that can be made again (.venv too; runs/ stays)
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
