# make demo    show hpcdl on this machine: emulated GPUs, two policies, a report   (SET=1|2|3 SCALE=60 REPORT=DIR)
# make smoke   does this installation work? a minute, without PyTorch, a GPU or a batch system
# make test    every part of hpcdl, five tests at a time; on a real Slurm and in Chromium too, which it installs where it may   (JOBS=N)
# make test-pure   of these, the ones without a daemon, an agent or a trainer
# make test-all    everything: repetitions, long stories, all of the frameworks, bare machines; hours
# make test-frameworks   trainers of the real PyTorch, TensorFlow, JAX, Horovod and others, and what holds; installs them   (30 minutes)
# make smoke-frameworks   one trainer of each of these, suspended, resumed and done, two at a time; installs them, too   (6 minutes)
# make test-bare   `make demo` and `make test` on a bare Debian 12, 13 and Ubuntu, as root and as a user; needs root, unshare, debootstrap   (RELEASES= USERS= COMMANDS= ARGS=)
# make lint    formatting, ruff, mypy; the trainer library on Python 3.8
# make venv    only the environment in .venv, with hpcdl in it
# make clean   remove what these made

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
FRAMEWORKS ?= .venv-frameworks
JOBS   ?= 5
INSTALL := .ci/install $(VENV) $(PYTHON)
INPUTS := setup.cfg pyproject.toml constraints.txt hpcdl/__init__.py .ci/install

.PHONY: help venv demo smoke test test-pure test-all test-long install-test install-programs install-frameworks expect test-frameworks smoke-frameworks test-bare lint clean
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

smoke: venv
	@$(BIN)/python -m tests.smoke

# Many tests wait for processes, and start hundreds of them, which is faster where what was compiled is kept.
PYTEST := exec env PYTHONDONTWRITEBYTECODE= .ci/pytest $(BIN)/python --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder

test: expect install-test install-programs
	$(PYTEST) $(if $(filter no,$(PURE)),-m "not pure") $(ARGS)

test-pure: install-test
	$(PYTEST) -m pure $(ARGS)

# One part that fails keeps none from the others.
test-all: install-test
	@exec .ci/parts --all test-long test-frameworks test-bare

test-long: expect install-test install-programs
	HPCDL_TEST_ALL=1 $(PYTEST) $(ARGS)

install-test: $(VENV)/.installed-test

install-programs:
	@.ci/slurm
	@.ci/chromium
	@.ci/tools $(BIN)/python

expect:
	@echo "hpcdl: tests of every part: 8 to 15 minutes on two idle cores, by how fast they are; more on a busy machine (make smoke: one minute); no GPU is needed"
	@echo "hpcdl: the first time it installs what they need into $(VENV): PyTorch, Keras and others, 2 GB; and Slurm, Chromium and others, where it may (.ci/slurm, .ci/chromium)"

$(FRAMEWORKS)/.installed: tests/frameworks/requirements.txt $(wildcard tests/frameworks/older/*.txt) constraints.txt .ci/frameworks .ci/horovod | $(VENV)/.installed-test
	@.ci/frameworks $(FRAMEWORKS) $(BIN)/python
	@touch $@

install-frameworks: $(FRAMEWORKS)/.installed

# Too large for `make test`. One at a time: each of these imports takes a core for seconds.
test-frameworks: $(VENV)/.installed-test $(FRAMEWORKS)/.installed
	exec env HPCDL_FRAMEWORKS=$(abspath $(FRAMEWORKS)) .ci/pytest $(BIN)/python -v tests/frameworks $(ARGS)

# Whoever is done first takes tests from the other one.
smoke-frameworks: $(VENV)/.installed-test $(FRAMEWORKS)/.installed
	exec env HPCDL_FRAMEWORKS=$(abspath $(FRAMEWORKS)) .ci/pytest $(BIN)/python -m smoke --numprocesses 2 --dist worksteal tests/frameworks $(ARGS)

test-bare:
	@RELEASES="$(RELEASES)" USERS="$(USERS)" COMMANDS="$(COMMANDS)" ARGS='$(ARGS)' PYTHON="$(PYTHON)" exec .ci/bare

lint: $(VENV)/.installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/vermin --quiet --violations --no-tips --target=3.8- hpcdl/__init__.py hpcdl/trainer

clean:
	rm -rf $(VENV) $(FRAMEWORKS) build dist hpcdl.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find hpcdl tests jobscripts -name __pycache__ -type d -prune -exec rm -rf {} +
