# SPDX-License-Identifier: Apache-2.0
# Prerequisites of the targets: a virtual environment and Debian packages.
# Each target installs only the missing packages that it uses.

APT_LINT := clang-format shellcheck git
# The module is linted against Debian's kernel headers, regardless of the running kernel.
# checkpatch.pl ships only in the kernel source package (a single 140 MB download).
APT_LINT += sparse linux-headers-amd64 linux-source perl xz-utils
# groff-base formats the man pages in a test.
APT_BUILD := gcc g++ groff-base libc6-dev make python3-venv
# Only the tests of report pages need a browser. chromium-driver must have chromium's version.
APT_BROWSER := chromium chromium-driver
APT_FUZZ := clang libclang-rt-dev

# $(call apt,packages): install missing packages
define apt
missing=(); for package in $(1); do \
	dpkg-query -W -f '$${Status}' "$$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$$package"); \
done; \
if (( $${#missing[@]} )); then \
	echo "installing by apt: $${missing[*]}"; \
	if (( EUID )); then echo "error: not root (run once: apt-get install $${missing[*]})" >&2; exit 1; fi; \
	apt-get update -qq; \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$${missing[@]}" </dev/null >/dev/null; \
fi; \
mkdir -p $(BUILD); touch $@
endef

$(BUILD)/.apt-lint: tests/tools.mk
	@$(call apt,$(APT_LINT))

$(BUILD)/.apt-build: tests/tools.mk
	@$(call apt,$(APT_BUILD))

$(BUILD)/.apt-tcmalloc: tests/tools.mk
	@$(call apt,libtcmalloc-minimal4)

$(BUILD)/.apt-browser: tests/tools.mk
	@$(call apt,$(APT_BROWSER))

$(BUILD)/.apt-fuzz: tests/tools.mk
	@$(call apt,$(APT_FUZZ))

# Debian's promtool is in the package of the Prometheus server, whose service must not run here.
# Therefore only the program is unpacked.
$(BUILD)/promtool: tests/tools.mk
	@mkdir -p $(BUILD)/prometheus; cd $(BUILD)/prometheus; \
	apt-get download -qq prometheus 2>/dev/null || { apt-get update -qq; apt-get download -qq prometheus; }; \
	dpkg -x prometheus_*.deb .; mv usr/bin/promtool $@; rm -r $(BUILD)/prometheus; touch $@

# tests.vm has the list of the host tools that it needs, and installs them. It uses only Python's
# standard library, so it needs no virtual environment.
.PHONY: vm-tools
vm-tools:
	@$(PYTHON) -m tests.vm tools

# pip does not compile the installed modules: that takes half a minute, and most modules are never
# imported. Python compiles a module when it is first imported.
INSTALL := $(PY) -m pip install --quiet --no-compile

.PHONY: venv
venv: $(VENV)/.torch ## Create build/venv with the tests' Python dependencies

$(VENV)/.dev: pyproject.toml | $(BUILD)/.apt-build
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable '.[dev]'
	touch $@

# torch is pinned because the tests expect this version's allocation sequences.
$(VENV)/.torch: $(VENV)/.dev
	$(INSTALL) torch==2.13.0
	touch $@

$(VENV)/.trainer: $(VENV)/.torch
	$(INSTALL) --editable '.[trainer]'
	touch $@

$(VENV)/.fuzz: $(VENV)/.torch
	$(INSTALL) atheris==3.0.0
	touch $@
