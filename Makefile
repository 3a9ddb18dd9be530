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

# Which tests, by their markers.
SELECT ?= not long and not alone

.PHONY: unit
unit: $(VENV)/.torch shim ## Tests of single parts, seconds each
	$(PYTEST) tests/unit -m "$(SELECT)" $(PYTEST_ARGS)

.PHONY: integration
integration: $(VENV)/.torch shim ## Tests of parts together, on this machine
	$(PYTEST) tests/integration -m "$(SELECT)" $(PYTEST_ARGS)

# Two guests at a time: first what needs both, while the other images are built; then beside the
# one that most tests share those of the tests that need another.
GUEST_TESTS = $(PYTEST) tests/vm --durations=20 $(PYTEST_ARGS)

.PHONY: guest
guest: $(VENV)/.torch vm-tools shim ## Tests in the two-tier guest
	$(PY) -m tests.vm build --main
	@$(PY) -m tests.vm build & images=$$!; \
	status=0; $(GUEST_TESTS) -m "pair and ($(SELECT))" || status=$$?; \
	wait $$images; \
	echo "tests that need another guest run beside the rest; what they say comes after it"; \
	$(GUEST_TESTS) --guests 1 -m "apart and not pair and ($(SELECT))" >$(BUILD)/test-apart.log 2>&1 & apart=$$!; \
	$(GUEST_TESTS) --guests 1 -m "not apart and not pair and ($(SELECT))" || status=$$?; \
	wait $$apart || status=$$?; \
	cat $(BUILD)/test-apart.log; \
	exit $$status

# The guests' images and tests take longest, and seldom use more than one CPU: the others give way.
.PHONY: test
test: $(VENV)/.torch vm-tools shim ## All of them; the command for continuous integration
	@echo "lint, unit and integration tests run meanwhile; what they say comes last"
	@nice -n 5 $(MAKE) --no-print-directory lint unit integration >$(BUILD)/test-host.log 2>&1 & host=$$!; \
	status=0; $(MAKE) --no-print-directory guest || status=$$?; \
	wait $$host || status=$$?; \
	cat $(BUILD)/test-host.log; \
	exit $$status

.PHONY: test-long
test-long: $(VENV)/.trainer ## All tests, the long ones too, with full counts
	SENTINELD_HYPOTHESIS=long $(MAKE) test SELECT="not alone" PYTEST_ARGS="--timeout 7200 $(PYTEST_ARGS)"
	$(MAKE) integration SELECT=alone
	$(MAKE) fuzz

FUZZ_SECONDS ?= 600
FUZZ := $(BUILD)/fuzz
# Found inputs are kept in build/fuzz/TARGET; what breaks it is build/fuzz/TARGET-crash-*.
fuzz_run = mkdir -p $(FUZZ)/$(1); echo "$(1): $(FUZZ_SECONDS) s, build/fuzz/$(1).log"; \
	if ! $(2) $(FUZZ)/$(1) tests/fuzz/corpus/$(1) -max_len=4096 -max_total_time=$(FUZZ_SECONDS) \
		-print_final_stats=1 -artifact_prefix=$(FUZZ)/$(1)- >$(FUZZ)/$(1).log 2>&1; \
	then tail -60 $(FUZZ)/$(1).log; exit 1; fi; \
	grep -E 'DONE|^stat::(number_of_exec|average)' $(FUZZ)/$(1).log

.PHONY: fuzz
fuzz: $(VENV)/.fuzz $(BUILD)/.apt-fuzz shim ## Fuzz the C object and the protocol, FUZZ_SECONDS each, two at a time
	$(MAKE) -C tests/fuzz/native CC=clang FUZZER=-fsanitize=fuzzer OUT=$(FUZZ)/native
	@status=0; \
	( $(call fuzz_run,layout,$(FUZZ)/native/layout) ) & beside=$$!; \
	( $(call fuzz_run,words,$(FUZZ)/native/words) ) || status=$$?; wait $$beside || status=$$?; \
	( $(call fuzz_run,daemon,$(PY) -m tests.fuzz search daemon) ) & beside=$$!; \
	( $(call fuzz_run,shim,$(PY) -m tests.fuzz search shim) ) || status=$$?; wait $$beside || status=$$?; \
	exit $$status

##@ Benchmarks

.PHONY: bench-profile
bench-profile: $(VENV)/.dev vm-tools ## What profiling costs; build/bench/profile.json
	$(PY) -m tests.bench.profile

.PHONY: bench-shim
bench-shim: $(VENV)/.trainer shim $(BUILD)/.apt-tcmalloc ## What the shim costs a training; build/bench/shim.json
	$(PY) -m tests.bench.shim

.PHONY: bench-traces
bench-traces: $(VENV)/.trainer shim ## Record a trace of each of nine models; build/bench/traces/
	$(PY) -m tests.bench.traces

.PHONY: bench-policies
bench-policies: $(VENV)/.trainer shim ## Every policy on these traces, simulated; build/bench/policies.json
	$(PY) -m tests.bench.policies

.PHONY: bench-noise
bench-noise: $(VENV)/.trainer shim ## What noise on the layers' times costs auto, simulated; build/bench/noise.json
	$(PY) -m tests.bench.noise

.PHONY: bench-boundaries
bench-boundaries: $(VENV)/.torch ## How much of a step lies between two boundaries, by these traces
	$(PY) -m tests.bench.boundaries

.PHONY: bench-train
bench-train: $(VENV)/.trainer shim ## Train nine models on emulated tiers under each policy; build/bench/train.json
	$(PY) -m tests.bench.training

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
