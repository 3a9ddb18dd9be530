# SPDX-License-Identifier: Apache-2.0
# Prerequisites of the targets: a virtual environment and Debian packages. Each
# target installs only what it uses and only if it is missing.

APT_LINT := clang-format shellcheck git
# The module is linted against the headers of Debian's own kernel, whichever kernel runs.
# checkpatch.pl is packaged in the kernel's source only (140 MB to download, once).
APT_LINT += sparse linux-headers-amd64 linux-source perl xz-utils
APT_BUILD := gcc g++ libc6-dev make python3-venv
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

$(BUILD)/.apt-fuzz: tests/tools.mk
	@$(call apt,$(APT_FUZZ))

# The guest's driver lists the tools that it uses.
.PHONY: vm-tools
vm-tools: $(VENV)/.dev
	@$(PY) -m tests.vm tools

.PHONY: venv
venv: $(VENV)/.torch ## Create build/venv with everything that the tests need

$(VENV)/.dev: pyproject.toml | $(BUILD)/.apt-build
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --editable '.[dev]'
	touch $@

# Pinned: the tests expect the allocation sequences of this version.
$(VENV)/.torch: $(VENV)/.dev
	$(PY) -m pip install --quiet torch==2.13.0
	touch $@

$(VENV)/.trainer: $(VENV)/.torch
	$(PY) -m pip install --quiet --editable '.[trainer]'
	touch $@

$(VENV)/.fuzz: $(VENV)/.torch
	$(PY) -m pip install --quiet atheris==3.0.0
	touch $@
