# SPDX-License-Identifier: Apache-2.0
# `make help` says what there is.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
BUILD := $(CURDIR)/build
VENV := $(BUILD)/venv
PY := $(VENV)/bin/python
PYTEST ?= $(PY) -m pytest
PYTEST_ARGS ?=

include tests/tools.mk
include systemd/install.mk

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Checks

.PHONY: lint
lint: $(VENV)/.dev $(BUILD)/.apt-lint ## Style and types of all code, the unit's hardening
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy --strict sentineld
	@bash tests/lint-files.sh

SELECT ?= -m "not long"

.PHONY: unit
unit: $(VENV)/.torch shim ## Tests of single parts, seconds each
	$(PYTEST) tests/unit $(SELECT) $(PYTEST_ARGS)

.PHONY: integration
integration: $(VENV)/.torch shim ## Tests of parts together, on this machine
	$(PYTEST) tests/integration $(SELECT) $(PYTEST_ARGS)

.PHONY: guest
guest: $(VENV)/.torch vm shim ## Tests in the two-tier guest
	$(PYTEST) tests/vm $(SELECT) --durations=20 $(PYTEST_ARGS)

# The guests' images and tests take longest and seldom use more than one CPU.
.PHONY: test
test: lint $(VENV)/.torch vm-tools shim ## All of them; the command for continuous integration
	@echo "unit and integration tests run meanwhile; what they say comes last"
	@$(MAKE) --no-print-directory unit integration >$(BUILD)/test-host.log 2>&1 & host=$$!; \
	status=0; $(MAKE) --no-print-directory guest || status=$$?; \
	wait $$host || status=$$?; \
	cat $(BUILD)/test-host.log; \
	exit $$status

.PHONY: test-long
test-long: $(VENV)/.trainer ## All tests, the long ones too, with full counts
	SENTINELD_HYPOTHESIS=long $(MAKE) test SELECT= PYTEST_ARGS="--timeout 7200 $(PYTEST_ARGS)"

##@ Benchmarks

.PHONY: bench-profile
bench-profile: $(VENV)/.dev vm-tools ## What profiling costs; build/bench/profile.json
	$(PY) -m tests.bench.profile

.PHONY: bench-traces
bench-traces: $(VENV)/.torch shim ## Record a trace of each of nine models; build/bench/traces/
	$(PY) -m tests.bench.traces

##@ The two-tier machine

.PHONY: vm
vm: $(VENV)/.dev vm-tools ## Build the guests' images (kept in build/, by their recipes' hash)
	$(PY) -m tests.vm build

.PHONY: vm-shell
vm-shell: $(VENV)/.dev vm-tools ## A shell in the guest
	$(PY) -m tests.vm shell

.PHONY: demo
demo: $(VENV)/.dev vm-tools ## Train under five policies and compare; build/demo/report.md
	$(PY) -m tests.demo

##@ What is built

.PHONY: shim
shim: $(BUILD)/.apt-build ## The shim's C object
	$(MAKE) -C sentineld/shim/native

.PHONY: module
module: $(BUILD)/.apt-build ## The kernel module, for the running kernel
	$(MAKE) -C kmod

.PHONY: docs
docs: $(VENV)/.dev ## The pages that are generated from the code
	$(PY) -m docs.generate

.PHONY: clean
clean: ## Remove what was built, the guest's image too
	rm -rf $(BUILD) *.egg-info
