# pagechat's commands for people: `make chat` to use it, `make test` before a commit.
# Everything is installed into .venv beside this file and nowhere else; `make clean` takes it away.

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

# The stamp holds the folder it was made in: an environment that moved, or whose Python went away, is made again.
ifneq ($(shell test -x $(BIN)/python && cat $(STAMP) 2>/dev/null),$(CURDIR))
STALE := FORCE
endif

.PHONY: help setup chat test lint gpu-test clean FORCE

help:
	@echo "make setup     install pagechat and its tools into $(VENV)"
	@echo "make chat      open the terminal app (ARGS='--theme NAME' passes flags on)"
	@echo "make test      every check: format, lint, types, import rules, tests"
	@echo "make lint      the checks of 'make test' without the tests"
	@echo "make gpu-test  the tests that need an NVIDIA GPU"
	@echo "make clean     remove $(VENV), caches and build outputs"

setup: $(STAMP)

# Written last: after an install that failed or was interrupted there is none, and the next call starts afresh.
$(STAMP): pyproject.toml constraints.txt $(STALE)
	@rm -f $@
	@command -v $(PYTHON) >/dev/null || { echo "No '$(PYTHON)' here: pagechat needs Python 3.11 or newer. Name yours: make $(MAKECMDGOALS) PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "pagechat needs Python 3.11 or newer, and $(PYTHON) is %d.%d. Name another: make $(MAKECMDGOALS) PYTHON=python3.12" % v[:2])'
	@test "$(STALE)" = "" && $(BIN)/python -m pip --version >/dev/null 2>&1 || { rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); }
	@echo "Installing pagechat into $(VENV): a few minutes the first time ..."
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@echo "$(CURDIR)" > $@
	@echo "Installed."

chat: setup
	@$(BIN)/pagechat $(ARGS)

lint: setup
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "Not formatted; run: $(BIN)/ruff format ." >&2; $(BIN)/ruff format --check . >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports > $(VENV)/imports.log 2>&1 || { cat $(VENV)/imports.log >&2; exit 1; }
	@echo "ruff, mypy and import-linter: no complaints."

# Two files at a time, each worker on one core, and then whole programs on terminals, which need the machine to themselves.
# With ARGS (paths, -k, -x, ...) pytest runs what they say, one test after the other.
test: lint
ifeq ($(ARGS),)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --ignore tests/e2e
	@$(BIN)/python -m pytest tests/e2e
else
	@$(BIN)/python -m pytest $(ARGS)
endif

gpu-test: setup
	@$(BIN)/python -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() and torch.version.cuda else "gpu-test needs an NVIDIA GPU and a CUDA build of torch; torch %s finds none here." % torch.__version__)'
	@$(BIN)/python -m pytest tests/gpu $(ARGS)

clean:
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
