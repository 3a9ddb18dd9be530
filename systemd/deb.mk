# SPDX-License-Identifier: Apache-2.0
# make deb: builds the Debian packages sentineld, python3-sentineld-shim and sentinel-dkms.
#
#   DEB=build/deb       folder of the packages; everything in it is deleted first
#   DEB_VERSION=        version of the packages, instead of that of systemd/debian/changelog.py
#   SOURCE_DATE_EPOCH=  date of the packages' files, in seconds since 1970; default: the last
#                       commit's date, or the current time without git

DEB ?= $(BUILD)/deb
DEB_SOURCE := $(DEB)/source
DEB_VERSION ?=
DEB_FILES := README.md SECURITY.md CHANGELOG.md LICENSE LICENSES Makefile pyproject.toml bpf docs kmod sentineld systemd tests/tools.mk $(PICTURE)
APT_DEB := build-essential debhelper dh-python dh-dkms fakeroot lintian
# `make install` makes the man pages and completions from the commands' help.
APT_DEB += python3-click python3-numpy python3-prometheus-client python3-pyroute2

$(BUILD)/.apt-deb: systemd/deb.mk
	@$(call apt,$(APT_DEB))

# Debian's tools write into the source tree, and need debian/ at its top with a changelog. So they
# work in a copy. --tag-display-limit=0: lintian prints all tags.
.PHONY: deb
deb: $(BUILD)/.apt-deb ## Build the Debian packages and check them with lintian; writes build/deb/*.deb
	rm -rf $(DEB)
	mkdir -p $(DEB_SOURCE)
	tar -cf - --exclude=__pycache__ --exclude='*.so' --exclude='*.o' --exclude='*.ko' $(DEB_FILES) | tar -xf - -C $(DEB_SOURCE)
	cp -r systemd/debian $(DEB_SOURCE)/debian
	date=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || date +%s)}; \
	$(SYSTEM_PYTHON) systemd/debian/changelog.py . $$date $(DEB_VERSION) > $(DEB_SOURCE)/debian/changelog
	cd $(DEB_SOURCE) && env -u MAKEFLAGS -u MAKELEVEL dpkg-buildpackage --build=binary --unsigned-changes --no-check-builddeps > $(DEB)/build.log 2>&1 \
		|| { tail -40 $(DEB)/build.log; exit 1; }
	lintian --fail-on error,warning --tag-display-limit 0 $(DEB)/*.changes
	ls $(DEB)/*.deb
