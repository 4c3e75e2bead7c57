# The two commands: `make quickstart` installs and runs the main job on data that need no download, `make test` runs the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

KILLS ?= 20
DATA ?= data

.PHONY: quickstart test wheel soak guard bench docs lint clean

# One thread: for nets this small a second one only helps where nothing else runs, and costs where something does.
quickstart: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python main.py fit --config configs/quickstart.yaml

# Two workers of one thread each: with more threads than processors, each waits for the other's. See tests/conftest.py for
# what goes to which worker.
test: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# The wheel, in build/wheel, and that it works in an environment of its own where no checkout is seen.
wheel: $(VENV)/.installed-test
	SKIPSCOPE_WHEEL=build/wheel OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/test_installed.py

# A short run killed and resumed again and again, against one that nobody disturbs: every bit, or exit code 1.
soak: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.soak --kills $(KILLS)

# Ratios that every change must keep, with a wide margin: on made images, minutes.
guard: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.guard

# All figures of speed but a GPU's, on the data sets in DATA: an hour. Pages are made of the quickstart's run.
bench: $(VENV)/.installed-test runs/digits/quickstart
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks --root $(DATA) --out build/speed --run runs/digits/quickstart

runs/digits/quickstart:
	$(MAKE) quickstart

# The documentation, in site/; warnings are errors (mkdocs.yml says strict). The tests build it too.
docs: $(VENV)/.installed-test
	$(BIN)/python -m mkdocs build

# What a machine can check without running anything; ruff and mypy in the versions of constraints.txt.
lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else "SkipScope needs Python 3.11 to 3.13, $(PYTHON) is %d.%d: make PYTHON=python3.12 ..." % sys.version_info[:2])'
	@echo "installing into $(VENV) (PyTorch brings several GB the first time: minutes)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) build site *.egg-info
