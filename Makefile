# make demo    show hpcdl on this machine: emulated GPUs, two policies, a report   (SET=1|2|3 SCALE=60 REPORT=DIR)
# make test    every test, three at a time; on a real Slurm too, which it installs where it may   (JOBS=N)
# make lint    formatting, ruff, mypy
# make venv    only the environment in .venv, with hpcdl in it
# make clean   remove what these made

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
JOBS   ?= 3
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

# Many tests wait for processes, and start hundreds of them, which is faster where what was compiled is kept.
test: $(VENV)/.installed-test
	@.ci/slurm
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(VENV)/.installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist hpcdl.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find hpcdl tests jobscripts -name __pycache__ -type d -prune -exec rm -rf {} +
