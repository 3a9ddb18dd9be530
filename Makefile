# SPDX-License-Identifier: Apache-2.0
# `make help` lists the targets.

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

# The tests start hundreds of Python interpreters, which start faster with cached bytecode.
unexport PYTHONDONTWRITEBYTECODE

include tests/tools.mk
include systemd/install.mk
include systemd/deb.mk

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Checks

.PHONY: lint
lint: $(VENV)/.dev $(BUILD)/.apt-lint ## Check style, types and the systemd unit's hardening
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy --strict sentineld
	@bash tests/lint-files.sh

# The expression for pytest's option -m, which selects the tests to run by their markers.
SELECT ?= not long and not alone

UNIT_TESTS ?= tests/unit

.PHONY: unit
unit: $(VENV)/.torch shim $(BUILD)/promtool ## Run the unit tests
	$(PYTEST) $(UNIT_TESTS) -m "$(SELECT)" $(PYTEST_ARGS)

# Integration tests to run. `make test` runs all of them in three parts: those in AFTER_HOSTILE after
# the hostile tests, the tests of paged tiers after the first sequence of tests in guests, and the
# other integration tests after the unit tests.
INTEGRATION ?= tests/integration
AFTER_HOSTILE := tests/integration/shim tests/integration/test_emulated.py \
	tests/integration/test_placement.py

.PHONY: integration
integration: $(VENV)/.torch shim ## Run the integration tests on this machine
	$(PYTEST) $(INTEGRATION) -m "$(SELECT)" $(PYTEST_ARGS)

.PHONY: browser
browser: $(VENV)/.torch $(BUILD)/.apt-browser ## Run the tests of report pages in headless Chromium
	$(PYTEST) tests/browser -m "$(SELECT)" $(PYTEST_ARGS)

.PHONY: hostile
hostile: $(VENV)/.torch shim ## Attack the daemon as another user of this machine (needs root)
	$(PYTEST) tests/hostile -m "$(SELECT)" $(PYTEST_ARGS)

# The tests need only the main image, unless SELECT includes long tests. If IMAGES is empty, all
# images are built.
IMAGES ?= --main

# At most two guests run at a time. Tests marked "pair" need two guests and run first, while the
# remaining images are built. Then two sequences of tests run in parallel, each with one guest at a
# time. One sequence consists of the tests that have none of the markers "pair", "second" and
# "apart"; these tests share one guest, which runs the main image. The other sequence runs in a
# subshell: first the tests marked "second", which share another guest with the main image, then the
# tests marked "apart", which also use other images. The subshell waits for the image builder with
# `tail --pid`, because `wait` works only for a shell's own children. pytest exits with 5 if it
# selects no test. All tests marked "pair" are long, so pytest selects none of them if SELECT
# excludes the long tests.
GUEST_TESTS = $(PYTEST) tests/vm $(PYTEST_ARGS)
# A command that runs after the first of these two sequences. This sequence is the shorter one, so
# the other sequence is usually still running.
THEN ?= true

.PHONY: guest
guest: $(VENV)/.torch vm-tools shim ## Run the tests in the two-tier guest
	$(PY) -m tests.vm build --main
	@$(PY) -m tests.vm build $(IMAGES) & images=$$!; \
	status=0; $(GUEST_TESTS) -m "pair and ($(SELECT))" || (( $$? == 5 )) || status=1; \
	echo "tests in other guests run in parallel; their output follows at the end"; \
	( parallel=0; \
	  $(GUEST_TESTS) --guests 1 -m "second and not apart and not pair and ($(SELECT))" || parallel=$$?; \
	  tail --pid=$$images -f /dev/null; \
	  $(GUEST_TESTS) --guests 1 -m "apart and not pair and ($(SELECT))" || parallel=$$?; \
	  exit $$parallel \
	) >$(BUILD)/test-guests.log 2>&1 & others=$$!; \
	$(GUEST_TESTS) --guests 1 -m "not second and not apart and not pair and ($(SELECT))" || status=$$?; \
	$(THEN) || status=$$?; \
	wait $$images || status=$$?; \
	wait $$others || status=$$?; \
	cat $(BUILD)/test-guests.log; \
	exit $$status

# Building images and testing in guests take longest, and each rarely uses more than one CPU. So the
# main image is built while pip installs the tests' dependencies, and everything else runs in
# parallel with image building and guests, at a lower priority (nice). The hostile tests mostly wait,
# so they run in parallel with lint and the unit tests. The tests in guests wait for the build of the
# main image. So that the hostile tests do not delay this build, they start only after it. Three
# sequences thus run in parallel: lint and unit tests, hostile tests, and tests in guests. Each of
# them continues with a part of the integration tests, so that all end at about the same time.
.PHONY: test
test: $(BUILD)/.apt-build vm-tools ## Run lint and all tests except the long ones (used by continuous integration)
	@$(PYTHON) -m tests.vm build --main & image=$$!; \
	$(MAKE) --no-print-directory $(VENV)/.torch shim || { kill $$image; exit 1; }; \
	echo "lint and the tests without guests run in parallel; their output follows at the end"; \
	nice -n 2 $(MAKE) --no-print-directory -k lint unit browser integration \
		INTEGRATION="tests/integration $(AFTER_HOSTILE:%=--ignore=%) --ignore-glob=*/test_paged*" \
		>$(BUILD)/test-host.log 2>&1 & host=$$!; \
	( tail --pid=$$image -f /dev/null; \
	  exec nice -n 2 $(MAKE) --no-print-directory -k hostile integration \
		INTEGRATION="$(AFTER_HOSTILE)" \
	) >$(BUILD)/test-hostile.log 2>&1 & hostile=$$!; \
	status=0; wait $$image || status=$$?; \
	$(MAKE) --no-print-directory guest \
		THEN="$(MAKE) --no-print-directory integration INTEGRATION='tests/integration/test_paged*.py'" \
		|| status=$$?; \
	wait $$host || status=$$?; \
	wait $$hostile || status=$$?; \
	cat $(BUILD)/test-host.log $(BUILD)/test-hostile.log; \
	exit $$status

# The unit tests of pure functions need most of the CPU time, because of the number of examples. They
# do not depend on time, so they run beside all other tests, at a lower priority, with one process
# for each of these directories.
PURE := plan policies simulate
LONG = env SENTINELD_HYPOTHESIS=long $(MAKE) --no-print-directory SELECT="not alone" \
	PYTEST_ARGS="--timeout 7200 $(PYTEST_ARGS)"

.PHONY: test-long
test-long: $(VENV)/.trainer $(VENV)/.torch shim $(BUILD)/promtool ## Run all tests, including the long ones, with the full number of Hypothesis examples; then run fuzz
	@status=0; pure=(); \
	for tests in $(PURE); do \
		nice -n 10 $(LONG) unit UNIT_TESTS=tests/unit/$$tests >$(BUILD)/test-$$tests.log 2>&1 & \
		pure+=($$!); \
	done; \
	$(LONG) test IMAGES= UNIT_TESTS="tests/unit $(PURE:%=--ignore=tests/unit/%)" || status=$$?; \
	for process in $${pure[@]}; do wait $$process || status=$$?; done; \
	cat $(PURE:%=$(BUILD)/test-%.log); \
	$(MAKE) integration SELECT=alone || status=$$?; \
	$(MAKE) fuzz || status=$$?; \
	exit $$status

FUZZ_SECONDS ?= 600
FUZZ := $(BUILD)/fuzz
# New inputs are kept in build/fuzz/TARGET. Inputs that crash the target are written to
# build/fuzz/TARGET-crash-*.
fuzz_run = mkdir -p $(FUZZ)/$(1); echo "$(1): $(FUZZ_SECONDS) s, build/fuzz/$(1).log"; \
	if ! $(2) $(FUZZ)/$(1) tests/fuzz/corpus/$(1) -max_len=4096 -max_total_time=$(FUZZ_SECONDS) \
		-print_final_stats=1 -artifact_prefix=$(FUZZ)/$(1)- >$(FUZZ)/$(1).log 2>&1; \
	then tail -60 $(FUZZ)/$(1).log; exit 1; fi; \
	grep -E 'DONE|^stat::(number_of_exec|average)' $(FUZZ)/$(1).log

.PHONY: fuzz
fuzz: $(VENV)/.fuzz $(BUILD)/.apt-fuzz shim ## Fuzz the shim's C library and the protocol (FUZZ_SECONDS per target)
	$(MAKE) -C tests/fuzz/native CC=clang FUZZER=-fsanitize=fuzzer OUT=$(FUZZ)/native
	@status=0; \
	( $(call fuzz_run,layout,$(FUZZ)/native/layout) ) & beside=$$!; \
	( $(call fuzz_run,words,$(FUZZ)/native/words) ) || status=$$?; wait $$beside || status=$$?; \
	( $(call fuzz_run,daemon,$(PY) -m tests.fuzz search daemon) ) & beside=$$!; \
	( $(call fuzz_run,shim,$(PY) -m tests.fuzz search shim) ) || status=$$?; wait $$beside || status=$$?; \
	[[ -w /dev/userfaultfd ]] || exit $$status; \
	( $(call fuzz_run,moves,$(FUZZ)/native/moves) ) & beside=$$!; \
	( $(call fuzz_run,paged,$(PY) -m tests.fuzz search paged) ) || status=$$?; wait $$beside || status=$$?; \
	exit $$status

##@ Benchmarks

.PHONY: bench-profile
bench-profile: $(VENV)/.dev vm-tools ## Measure the cost of profiling; writes build/bench/profile.json
	$(PY) -m tests.bench.profile

.PHONY: bench-shim
bench-shim: $(VENV)/.trainer shim $(BUILD)/.apt-tcmalloc ## Measure the shim's overhead on training; writes build/bench/shim.json
	$(PY) -m tests.bench.shim

.PHONY: bench-traces
bench-traces: $(VENV)/.trainer shim ## Record a trace of each of nine models; writes build/bench/traces/
	$(PY) -m tests.bench.traces

.PHONY: bench-policies
bench-policies: $(VENV)/.trainer shim ## Simulate every policy on the recorded traces; writes build/bench/policies.json
	$(PY) -m tests.bench.policies

.PHONY: bench-sensitivity
bench-sensitivity: $(VENV)/.trainer shim ## Simulate every policy under variants of the timing model; writes build/bench/sensitivity.json
	$(PY) -m tests.bench.sensitivity

.PHONY: bench-sharing
bench-sharing: $(VENV)/.trainer shim ## Compare the division of a shared budget with the best one; writes build/bench/sharing.json
	$(PY) -m tests.bench.sharing

.PHONY: bench-noise
bench-noise: $(VENV)/.trainer shim ## Simulate the policy auto with random variation of layer times; writes build/bench/noise.json
	$(PY) -m tests.bench.noise

.PHONY: bench-attacks
bench-attacks: $(VENV)/.torch shim ## Measure what attacks cost other users; writes build/bench/attacks.json (needs root)
	$(PY) -m tests.bench.attacks

.PHONY: bench-boundaries
bench-boundaries: $(VENV)/.torch ## Check that boundaries cut the recorded traces into small stretches
	$(PY) -m tests.bench.boundaries

.PHONY: bench-train
bench-train: $(VENV)/.trainer shim ## Train nine models on emulated tiers under six policies; writes build/bench/train.json
	$(PY) -m tests.bench.training

.PHONY: bench-lengths
bench-lengths: $(VENV)/.trainer shim ## Train with a different sequence length in each step; writes build/bench/lengths.json
	$(PY) -m tests.bench.lengths

.PHONY: bench-paging
bench-paging: $(VENV)/.trainer shim ## Train models in 20 and 40 % of their memory, compared with Linux swap; writes build/bench/paging.json (needs root)
	$(PY) -m tests.bench.paging

.PHONY: bench-pager
bench-pager: $(VENV)/.trainer ## Compare the pager with plain direct I/O, in speed and CPU time; writes build/bench/pager.json
	$(PY) -m tests.bench.pager

.PHONY: bench-scrape
bench-scrape: $(VENV)/.dev ## Measure scrapes of the metrics with 50 managed sessions; writes build/bench/scrape.json (needs root)
	$(PY) -m tests.bench.scrape

##@ The two-tier machine

.PHONY: vm
vm: $(VENV)/.dev vm-tools ## Build the guest images (cached in build/ by recipe hash)
	$(PY) -m tests.vm build

.PHONY: vm-shell
vm-shell: $(VENV)/.dev vm-tools ## Open a shell in the guest
	$(PY) -m tests.vm shell

# The demo's second part runs even if the first part fails, unless a signal ended the first part
# (exit status 128 or more). Status 3 means that this machine cannot run the first part, which does
# not count as a failure. The variable DEMO_FOLDER names a folder on the disk to use.
.PHONY: demo
demo: $(VENV)/.torch shim ## Train in less memory than needed, then under five policies; writes build/demo/*.md
	@status=0; $(PY) -m tests.demo.paging || status=$$?; \
	if (( status >= 128 )); then exit $$status; fi; \
	if (( status == 3 )); then status=0; fi; \
	echo "demo: part 2: five policies on two memory tiers; make demo-paging omits it" >&2; \
	$(MAKE) --no-print-directory vm-tools; \
	$(PY) -m tests.demo || status=$$?; \
	exit $$status

.PHONY: demo-paging
demo-paging: $(VENV)/.torch shim ## Train in less memory than needed, compared with Linux swap; writes build/demo/paging.md
	$(PY) -m tests.demo.paging

##@ Build

.PHONY: shim
shim: $(BUILD)/.apt-build ## Build the shim's C library
	$(MAKE) -C sentineld/shim/native

.PHONY: module
module: $(BUILD)/.apt-build ## Build the kernel module for the running kernel
	$(MAKE) -C kmod

.PHONY: docs
docs: $(VENV)/.dev ## Regenerate the documentation that is generated from the code
	$(PY) -m docs.generate

.PHONY: site
site: $(VENV)/.dev ## Build the documentation site and check its links; writes build/site/index.html
	$(PY) -m docs.site $(BUILD)/site

# The first dashboard shows a training in a guest, the second one a training on this machine.
.PHONY: dashboard-pictures
dashboard-pictures: $(VENV)/.torch shim vm-tools ## Train, and draw the dashboards from Prometheus's answers; writes docs/grafana/*.png (needs root)
	$(PY) -m tests.board_pictures

.PHONY: clean
clean: ## Remove all build output, including guest images
	rm -rf $(BUILD) *.egg-info
