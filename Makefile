# One command each; `make help` lists them. Paths are relative, so that any directory will do.

PY := .venv/bin/python
MODEL ?= gemma3-270m
TOKENS ?= 2048,8192
# For `make bench`: NAME=PATH for each trace of benchmark NAME.
TRACES ?=
PINS := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench clean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

# The `dev` extra holds all of `demo`, so its stamp is written with it and by it.
.venv/stamp-demo: $(PINS)
	@.ci/install demo
	@touch $@

.venv/stamp-dev: $(PINS)
	@.ci/install dev
	@touch .venv/stamp-demo $@

demo: .venv/stamp-demo ## Install, fetch the small model, and show what a restart costs (MODEL=, TOKENS=)
	@mkdir -p out
	$(PY) -m spillcache bench restart -m "$(MODEL)" --prompt-tokens "$(TOKENS)" --plot out/restart.png

# Two processes share the cores: llama.cpp's threads must not spin while they wait for each other.
test: .venv/stamp-dev ## Run every test, with branch coverage
	OMP_WAIT_POLICY=passive $(PY) -m pytest -n 2 --dist loadfile --cov --cov-report=term

lint: .venv/stamp-dev ## Check style and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench: .venv/stamp-dev ## Run the benchmarks of docs/benchmarks.md and write what they find (an hour; TRACES=)
	$(PY) bench/report.py $(addprefix --trace ,$(TRACES))

clean: ## Remove what was built, but not .venv
	rm -rf out dist build .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
