# Two commands to begin with: `make quickstart` and `make test`. Nothing but git, make and Python 3.11+ is needed.
# On a GPU machine, or for another torch build: make quickstart PIP_ARGS=

PYTHON ?= python3
PIP_ARGS ?= -c constraints/cpu.txt
BIN := .venv/bin

.PHONY: quickstart test test-slow test-e2e docs reference benchmarks clean

quickstart: .venv/.installed
	$(BIN)/electra quickstart

test: .venv/.installed
	$(BIN)/ruff check electra tests benchmarks docs/*.py
	$(BIN)/ruff format --check electra tests benchmarks docs/*.py
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

test-slow: .venv/.installed
	OMP_NUM_THREADS=1 $(BIN)/pytest -m slow -n 2

test-e2e: .venv/.installed  # needs a Chromium; on Debian: apt-get install chromium
	OMP_NUM_THREADS=1 $(BIN)/pytest -m e2e -n 0

docs: .venv/.installed  # the site, in site/; open site/index.html
	$(BIN)/python docs/build_site.py

reference: .venv/.installed  # the pages that the code writes
	$(BIN)/electra settings > docs/settings.md
	$(BIN)/python docs/command_reference.py > docs/commands.md

benchmarks: .venv/.installed
	$(BIN)/python -m benchmarks.help
	$(BIN)/python -m benchmarks.shard
	$(BIN)/python -m benchmarks.pretrain_cpu
	$(BIN)/pip install --quiet --disable-pip-version-check $(PIP_ARGS) --editable '.[benchmarks]'
	$(BIN)/python -m benchmarks.finetune_cpu
	@echo 'With a GPU: python -m benchmarks.batch benchmarks/gpu_evidence.toml; the head of that file says what it needs.'

.venv/.installed: pyproject.toml constraints/cpu.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; try: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check $(PIP_ARGS) --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build site
