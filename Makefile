# `make demo` and `make test` set up all they need: .venv with everything in it. `make help` lists the rest.

PYTHON_CANDIDATES = $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CONSTRAINTS := deploy/constraints.txt
DEMO_READY := $(VENV)/.demo-ready
DEV_READY := $(VENV)/.dev-ready
TORCH := torch>=2.9,<2.14

.DEFAULT_GOAL := help
.PHONY: help demo test check setup screenshots clean
.DELETE_ON_ERROR:

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf '  %-18s %s\n' "$$name" "$$text"; done
	@echo
	@echo '  ARGS="..."         more arguments for demo or test, e.g. make demo ARGS="--headless --situation S1"'
	@echo '  PYTHON=...         the Python (3.11 or newer) to build .venv with'
	@echo '  TORCH_INDEX=URL    package index to take PyTorch from, e.g. one of CPU builds'
	@echo '  MALLEUS_HOME=DIR   where the demo keeps its data (.malleus here)'
	@echo '  SYSTEM_PACKAGES=no test installs nothing outside this folder, root or not'

demo: export MALLEUS_HOME ?= $(CURDIR)/.malleus
demo: $(DEMO_READY)  ## set up, start everything, train with a straggler, print the dashboard's URL
	@$(BIN)/malleus demo $(ARGS)

test: $(DEV_READY)  ## set up, run all tests
	@[ "$(SYSTEM_PACKAGES)" = no ] || deploy/system-packages.sh chromium || true
	@if [ -n "$(strip $(ARGS))" ]; then $(BIN)/python -m pytest $(ARGS); else $(RUN_ALL); fi

# Tests that start several ranks or a browser have the machine to themselves; the others run two at a time.
RUN_ALL = status=0; $(BIN)/python -m pytest -n 2 --dist loadfile -m "not browser" --ignore tests/engine || status=1; \
	$(BIN)/python -m pytest tests/engine tests/app/test_browser*.py || status=1; exit $$status

check: $(DEV_READY)  ## format, lint and types, changes nothing
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/mypy deploy/health.py

setup: $(DEV_READY)  ## create .venv with everything for demo, test and check

screenshots: $(DEV_READY)  ## take the pictures of docs/tour.md anew; needs Chromium
	@SCREENSHOTS=$(CURDIR)/docs/screenshots $(BIN)/python -m pytest tests/app/test_browser_screenshots.py

clean:  ## remove .venv, caches and build output; the data in .malleus stays
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is newer than what it was made from, so a changed dependency installs again and nothing else does.
# What development needs includes what the demo needs.
$(DEV_READY): pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@$(call install,.[dev])
	@touch $(DEMO_READY) $@

$(DEMO_READY): pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@$(call install,.)
	@touch $@

define install
	echo "Installing the dependencies into $(VENV) (once; a few minutes and about 2 GB)"; \
	if [ -n "$(TORCH_INDEX)" ]; then $(PIP) install -qq --no-deps --index-url "$(TORCH_INDEX)" "$(TORCH)"; fi && \
	$(PIP) install -qq -c $(CONSTRAINTS) -e "$(1)"
endef

$(BIN)/python:
	@found=; for candidate in $(PYTHON_CANDIDATES); do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "expected Python 3.11 or newer, found none among: $(PYTHON_CANDIDATES) (name one with PYTHON=/path/to/python3.12)" >&2; exit 2; \
	fi; \
	if ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then \
	  echo "expected Python's venv module, $$found comes without it (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 2; \
	fi; \
	"$$found" -m venv $(VENV)
