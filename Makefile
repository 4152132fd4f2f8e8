# make demo    show hpcdl on this machine: emulated GPUs, two policies, a report   (SET=1|2|3 SCALE=60 REPORT=DIR)
# make test    every test, two at a time   (JOBS=N)
# make lint    formatting, ruff, mypy
# make venv    only the environment in .venv, with hpcdl in it
# make clean   remove what these made

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
JOBS   ?= 2
INSTALL := .ci/install $(VENV) $(PYTHON)
INPUTS := setup.cfg pyproject.toml constraints.txt hpcdl/__init__.py .ci/install

.PHONY: help venv demo test lint clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# //p;/^$$/q' Makefile

# Which extras an environment holds is the name of its stamp, so the demo never waits for torch.
$(VENV)/.installed: $(INPUTS)
	@$(INSTALL)
	@touch $@

$(VENV)/.installed-test: $(INPUTS)
	@$(INSTALL) test
	@touch $(VENV)/.installed $@

venv: $(VENV)/.installed

demo: venv
	@$(BIN)/hpcdl demo $(if $(SET),--set "$(SET)") $(if $(SCALE),--scale "$(SCALE)") $(if $(REPORT),--report "$(REPORT)")

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile $(ARGS)

lint: $(VENV)/.installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist hpcdl.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find hpcdl tests jobscripts -name __pycache__ -type d -prune -exec rm -rf {} +
