# SPDX-License-Identifier: Apache-2.0
# make install: installs the daemon, which runs with the distribution's Python and Python packages.
#
#   PREFIX=/usr/local   prefix of the programs, the Python package and the unit
#   DESTDIR=            staging folder, prepended to every path; if it is set, `make activate` does
#                       not run
#   KO=sentinel.ko      install this module, for the kernel for which it was built; without KO,
#                       DKMS builds the module from /usr/src, if dkms is installed
#   KERNELS=            the kernels for which DKMS builds the module; default: the running kernel and
#                       all kernels whose headers are installed
#   SO=libsentinelshim.so  install this shim object instead of compiling one

PREFIX ?= /usr/local
DESTDIR ?=
KO ?=
KERNELS ?= $(sort $(shell uname -r) $(patsubst /lib/modules/%/build/Makefile,%,$(wildcard /lib/modules/*/build/Makefile)))
SO ?=
SYSTEM_PYTHON ?= /usr/bin/python3

LIBDIR = $(PREFIX)/lib/sentineld
SHAREDIR = $(PREFIX)/share
DOCDIR = $(SHAREDIR)/doc/sentineld
COMMAND_FILES = man/man1/sentinelctl.1 man/man1/sentinelctl-*.1 man/man8/sentineld.8 \
	$(foreach program,sentinelctl sentineld,bash-completion/completions/$(program) \
	zsh/site-functions/_$(program) fish/vendor_completions.d/$(program).fish)
UNIT = $(PREFIX)/lib/systemd/system/sentineld.service
SYSUSERS = $(PREFIX)/lib/sysusers.d/sentineld.conf
TMPFILES = $(PREFIX)/lib/tmpfiles.d/sentineld.conf
CATALOG = $(PREFIX)/lib/systemd/catalog/sentineld.catalog
MODULES_LOAD = $(PREFIX)/lib/modules-load.d/sentineld.conf
CONFIG = /etc/sentineld/config.toml
# The module has the version number of its UAPI, not that of the daemon.
DKMS_VERSION := $(shell sed -n 's/^PACKAGE_VERSION="\(.*\)"/\1/p' kmod/dkms.conf)
DKMS_SOURCE = /usr/src/sentinel-$(DKMS_VERSION)
# The recipes do not pipe the output of `dkms status`, which has one line for each kernel, into a
# program that ends after the first line, such as `grep -q`: dkms could be killed by SIGPIPE, and
# -o pipefail would report a failure.
DKMS_MODULE = sentinel/$(DKMS_VERSION)
# The .pth file lies in a folder below PREFIX that the system's Python searches for packages, so
# that `python3 -m sentineld.shim train.py` works. If there is no such folder, the file lies in
# LIBDIR and has no effect.
PTH = $(shell $(SYSTEM_PYTHON) -c 'import site; print(next((p for p in site.getsitepackages() if p.startswith("$(PREFIX)/") and ("$(PREFIX)" != "/usr" or not p.startswith("/usr/local/"))), "$(LIBDIR)"))')/sentineld.pth
KERNEL = $(shell modinfo -F vermagic $(KO) | cut -d ' ' -f 1)
MODULE = /lib/modules/$(KERNEL)/updates/sentinel.ko

# The picture is in the README.
PICTURE = tests/unit/top/screens/sessions-80x24.svg
DOC_FILES = $(shell cd docs && find . -name '*.md' -o -name '*.yml' -o -name '*.json' -o -name '*.png')
MODULE_FILES = $(filter-out %.mod.c,$(notdir $(wildcard kmod/*.[ch] kmod/Kbuild kmod/Makefile kmod/dkms.conf)))
PACKAGE_FILES = $(shell find sentineld bpf -type f \( -name '*.py' -o -path 'bpf/*.[ch]' -o -path '*/assets/*' \) -o -name py.typed)

$(BUILD)/install/libsentinelshim.so: $(wildcard sentineld/shim/native/*.[ch] sentineld/shim/native/*/*.[ch]) sentineld/shim/native/Makefile
	mkdir -p $(@D)
	$(MAKE) -C sentineld/shim/native OUT=$@

# $(call copy,from,files,to): copies files; each keeps its path relative to the folder `from`. One
# tar is faster than one `install` for each file.
copy = tar -C $(1) -cf - --owner=0 --group=0 --mode=u=rwX,go=rX $(2) | tar -C $(3) -xf - --no-same-permissions

define launcher
#!$(SYSTEM_PYTHON) -P
import sys

sys.path.insert(0, "$(LIBDIR)")
from $(1) import main

# `sentinelctl advise` starts processes that import this file.
if __name__ == "__main__":
    sys.exit(main())
endef
# The man pages and completions are made from the commands' help. -B keeps bytecode out of the source
# tree.
MAKE_COMMAND_FILES = $(SYSTEM_PYTHON) -B -m docs.command_files
# This line of the .pth file runs at every start of the system's Python. It reads one environment
# variable, and imports the shim only if the variable is 1.
export PTH_LINE = import os; os.environ.get("SENTINELD_SHIM") == "1" and __import__("sentineld.shim")
export LAUNCHER_DAEMON = $(call launcher,sentineld.daemon)
export LAUNCHER_CLI = $(call launcher,sentineld.cli)

##@ Installation

# All users must be able to read the installed files, whatever root's umask is.
.PHONY: install
install: $(if $(SO),,$(BUILD)/install/libsentinelshim.so) ## Install below PREFIX=/usr/local; systemd/install.mk describes DESTDIR, KO and SO
	@umask 022; $(MAKE) --no-print-directory install-files

.PHONY: install-files
install-files:
	@$(SYSTEM_PYTHON) -c 'import sys, importlib.util as u; sys.exit(not all(map(u.find_spec, sys.argv[1:])))' \
		numpy click prometheus_client pyroute2 || { \
		echo "error: Python packages are missing (apt-get install python3-numpy python3-scipy" \
			"python3-click python3-prometheus-client python3-pyroute2 python3-bpfcc)" >&2; exit 1; }
	install -d $(DESTDIR)$(LIBDIR) $(DESTDIR)$(DOCDIR) $(DESTDIR)$(DKMS_SOURCE)
	@$(call copy,.,$(PACKAGE_FILES),$(DESTDIR)$(LIBDIR))
	install -Dm644 $(or $(SO),$(BUILD)/install/libsentinelshim.so) $(DESTDIR)$(LIBDIR)/sentineld/shim/libsentinelshim.so
	install -D -m755 -t $(DESTDIR)$(LIBDIR)/slurm systemd/slurm/prolog systemd/slurm/epilog systemd/slurm/task-prolog
	$(SYSTEM_PYTHON) -m compileall -q -j 0 -s '$(DESTDIR)' $(DESTDIR)$(LIBDIR)
	install -d $(DESTDIR)$(PREFIX)/bin $(dir $(DESTDIR)$(PTH))
	printf '%s\n' "$$LAUNCHER_DAEMON" > $(DESTDIR)$(PREFIX)/bin/sentineld
	printf '%s\n' "$$LAUNCHER_CLI" > $(DESTDIR)$(PREFIX)/bin/sentinelctl
	chmod 755 $(DESTDIR)$(PREFIX)/bin/sentineld $(DESTDIR)$(PREFIX)/bin/sentinelctl
	printf '%s\n' '$(LIBDIR)' "$$PTH_LINE" > $(DESTDIR)$(PTH)
	@$(call copy,.,README.md SECURITY.md LICENSE LICENSES,$(DESTDIR)$(DOCDIR))
	@$(call copy,docs,$(DOC_FILES),$(DESTDIR)$(DOCDIR))
	install -m644 $(PICTURE) $(DESTDIR)$(DOCDIR)
	$(SYSTEM_PYTHON) -B -m docs.installed_pages $(DESTDIR)$(DOCDIR)
	$(MAKE_COMMAND_FILES) $(DESTDIR)$(SHAREDIR)
	install -d $(dir $(DESTDIR)$(UNIT))
	sed 's,@PREFIX@,$(PREFIX),; s,@DOCDIR@,$(DOCDIR),' systemd/sentineld.service.in > $(DESTDIR)$(UNIT)
	install -Dm644 systemd/sentineld.sysusers $(DESTDIR)$(SYSUSERS)
	install -Dm644 systemd/sentineld.tmpfiles $(DESTDIR)$(TMPFILES)
	install -Dm644 systemd/sentineld.catalog $(DESTDIR)$(CATALOG)
	install -Dm644 systemd/sentineld.modules-load $(DESTDIR)$(MODULES_LOAD)
	[[ -e $(DESTDIR)$(CONFIG) ]] || install -Dm644 systemd/config.toml $(DESTDIR)$(CONFIG)
	@$(call copy,kmod,$(MODULE_FILES),$(DESTDIR)$(DKMS_SOURCE))
	$(if $(KO),install -Dm644 $(KO) $(DESTDIR)$(MODULE))
	$(if $(DESTDIR),,$(MAKE) activate KO=$(KO))

# DKMS also rebuilds what it has already built for other kernels: after the next reboot, such a kernel
# would load a module of an older source tree. Two versions of the module would replace each other.
#
# If a distribution package installs the files, its post-install script has to run these steps.
.PHONY: activate
activate:
	systemd-sysusers $(SYSUSERS)
	systemd-tmpfiles --create $(TMPFILES)
	journalctl --update-catalog
ifneq ($(KO),)
	depmod $(KERNEL)
else
	if command -v dkms >/dev/null; then \
		for version in $$(dkms status -m sentinel | sed -n 's,^sentinel/\([^:, ]*\).*,\1,p' | sort -u); do \
			[[ $$version != $(DKMS_VERSION) ]] && dkms remove sentinel/$$version --all || continue; \
			dpkg -S /usr/src/sentinel-$$version >/dev/null 2>&1 || rm -rf /usr/src/sentinel-$$version; \
		done; \
		[[ -n "$$(dkms status $(DKMS_MODULE))" ]] || dkms add $(DKMS_MODULE); \
		for kernel in $(KERNELS); do \
			{ dkms build --force $(DKMS_MODULE) -k $$kernel && dkms install --force $(DKMS_MODULE) -k $$kernel; } || \
				echo "the module is not built for kernel $$kernel: sentineld runs without it there (see docs/explanation/backends.md)"; \
		done; \
	else \
		echo "dkms is missing: the module is not built (apt-get install dkms linux-headers-$$(uname -r), then make install again)"; \
	fi
endif
	systemctl daemon-reload
	@if systemctl is-active --quiet sentineld; then \
		echo "installed; to run the new version: systemctl stop sentineld; modprobe -r sentinel; systemctl start sentineld"; \
	else \
		echo "installed; start it with: systemctl enable --now sentineld"; \
	fi

.PHONY: uninstall
uninstall: ## Remove the installed files; keeps configuration and state in /etc and /var/lib
ifeq ($(DESTDIR),)
	systemctl disable --now sentineld 2>/dev/null || true
	modprobe -r sentinel 2>/dev/null || true
	if command -v dkms >/dev/null && [[ -n "$$(dkms status $(DKMS_MODULE))" ]]; then \
		dkms remove $(DKMS_MODULE) --all; \
	fi
endif
	rm -rf $(DESTDIR)$(LIBDIR) $(DESTDIR)$(DOCDIR) $(DESTDIR)$(DKMS_SOURCE)
	rm -f $(addprefix $(DESTDIR),$(PREFIX)/bin/sentineld $(PREFIX)/bin/sentinelctl $(PTH) $(UNIT) $(SYSUSERS) $(TMPFILES) $(CATALOG) $(MODULES_LOAD))
	rm -f $(addprefix $(DESTDIR)$(SHAREDIR)/,$(COMMAND_FILES))
	rm -f $(DESTDIR)/lib/modules/*/updates/sentinel.ko
ifeq ($(DESTDIR),)
	rm -rf /run/sentineld
	depmod
	journalctl --update-catalog
	systemctl daemon-reload
endif
