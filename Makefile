# The two commands: `make quickstart` installs and runs the main job on data that need no download, `make test` runs the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

KILLS ?= 20
TESTS ?=
DATA ?= data

.PHONY: quickstart test lowest wheel soak guard bench docs lint clean

# One thread: for nets this small a second one helps only on an idle machine, and slows things down on a busy one.
quickstart: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python main.py fit --config configs/quickstart.yaml

# Two workers with one thread each: with more threads than processors, they wait for each other. See tests/conftest.py for
# which tests go to which worker.
test: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# The tests with the lowest versions that pyproject.toml admits, in an environment of their own: gigabytes more. Some of these
# versions have no wheels for newer Pythons. TESTS=tests/cli runs some of the tests.
lowest:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info[:2] == (3, 11) else "the lowest versions need Python 3.11: make lowest PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)/lowest
	$(VENV)/lowest/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(VENV)/lowest/bin/uv pip install --quiet --python $(VENV)/lowest --resolution lowest-direct -e '.[test]'
	OMP_NUM_THREADS=1 $(VENV)/lowest/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(TESTS)

# Builds the wheel into build/wheel, and tests that it works in an environment of its own, without the checkout.
wheel: $(VENV)/.installed-test
	SKIPSCOPE_WHEEL=build/wheel OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/test_installed.py

# Kills and resumes a short run again and again, and compares it with an undisturbed one: exit code 1 if any bit differs.
soak: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.soak --kills $(KILLS)

# Checks ratios of speeds that every change must keep, with a wide margin; on synthetic images, takes minutes.
guard: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.guard

# Measures all speeds except those of a GPU, on the data sets in DATA: an hour. The quickstart's run serves to time reports.
bench: $(VENV)/.installed-test runs/digits/quickstart
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks --root $(DATA) --out build/speed --run runs/digits/quickstart

runs/digits/quickstart:
	$(MAKE) quickstart

# Builds the documentation into site/; warnings are errors (mkdocs.yml says strict). The tests build it too.
docs: $(VENV)/.installed-test
	$(BIN)/python -m mkdocs build

# Static checks; ruff and mypy have the versions of constraints.txt.
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
