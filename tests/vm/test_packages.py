# SPDX-License-Identifier: Apache-2.0
"""The Debian packages that `make deb` builds: their contents, and their installation, upgrade,
removal and purge in a fresh Debian 12 that has only the packages' dependencies."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .debian_packages import PACKAGES
from .host import REPOSITORY, require_ready

pytestmark = [pytest.mark.apart, pytest.mark.long]

NOT_STAGED = {"/usr/share/lintian/overrides/sentineld"}
"""Files of the packages that `make install` does not install, besides those of debhelper."""

LICENCES = re.compile(r"/usr/share/doc/sentineld/LICENSE(S/.*)?$")
"""Files that `make install` installs and that the packages replace with debian/copyright."""


def contents(package: Path) -> set[str]:
    """The files in a package."""
    command = ["dpkg-deb", "--fsys-tarfile", str(package)]
    archive = subprocess.run(command, check=True, capture_output=True).stdout
    listing = subprocess.run(["tar", "-tf", "-"], input=archive, check=True, capture_output=True)
    return {
        line.removeprefix(".") for line in listing.stdout.decode().splitlines() if line[-1] != "/"
    }


def as_staged(path: str) -> str:
    """The path to which `make install` installs this file of a package."""
    path = re.sub("^/lib/", "/usr/lib/", path)  # units on Debian 12
    path = path.replace("/zsh/vendor-completions/", "/zsh/site-functions/")
    return path.removesuffix(".gz") if path.startswith("/usr/share/man/") else path


def field(package: Path, name: str) -> str:
    command = ["dpkg-deb", "--field", str(package), name]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_packages_have_what_make_install_installs(
    packages: list[dict[str, Path]], tmp_path: Path
) -> None:
    options = (f"DESTDIR={tmp_path}", "PREFIX=/usr", "SYSTEM_PYTHON=/usr/bin/python3")
    subprocess.run(["make", "install", *options], cwd=REPOSITORY, check=True, capture_output=True)
    staged = {
        f"/{path.relative_to(tmp_path)}"
        for path in tmp_path.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packaged = [contents(path) for path in packages[0].values()]
    files = {as_staged(path) for part in packaged for path in part}
    assert sum(map(len, packaged)) == len(files)  # no file is in two packages
    by_debhelper = re.compile(
        r"/usr/share/doc/[^/]+/(changelog\.gz|CHANGELOG\.md|copyright)$|/usr/share/python3/"
    )
    assert {path for path in staged - files if not LICENCES.match(path)} == set()
    assert {path for path in files - staged if not by_debhelper.match(path)} == NOT_STAGED


class Root:
    """A fresh Debian 12 root tree. Each command runs in it through chroot, in its own mount, PID
    and network namespaces."""

    def __init__(self, place: Path, packages: dict[str, Path]) -> None:
        """Install a kernel's headers and the packages' dependencies, but not the packages."""
        self.place = place
        depends = ", ".join(field(path, "Depends") for path in packages.values())
        # Of several alternatives, take the first. "python3:any" is the package python3.
        names = {re.split(r"[ :|]", relation)[0] for relation in depends.split(", ")}
        include = ",".join({*names, "linux-headers-amd64", "systemd"} - set(PACKAGES))
        command = ("mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory")
        options = ("--dpkgopt=force-unsafe-io", f"--include={include}")
        subprocess.run([*command, *options, "bookworm", str(place)], check=True, timeout=1200)

    def run(self, command: str, status: int = 0) -> str:
        """The output of a bash line. Fails if the line's exit status is not `status`."""
        script = [
            "set -e",
            'cd "$0"',
            "mount --bind . .",
            'cd "$0"',
            "mount -t proc proc proc",
            "mount --rbind /dev dev",
            "mount -t tmpfs tmpfs run",
            "export HOME=/root LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            'exec chroot . "$@"',
        ]
        namespaces = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--net")
        done = subprocess.run(
            [*namespaces, "bash", "-c", "\n".join(script), str(self.place), "bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        assert done.returncode == status, done.stdout
        return done.stdout

    def install(self, packages: dict[str, Path]) -> None:
        """Install or upgrade the packages with dpkg. Fails if dpkg asks about a configuration
        file."""
        folder = self.place / "root/packages"
        folder.mkdir()
        for path in packages.values():
            shutil.copy(path, folder)
        try:
            self.run("DEBIAN_FRONTEND=noninteractive dpkg --install /root/packages/*.deb")
        finally:
            shutil.rmtree(folder)

    def files(self) -> set[str]:
        """All files and folders, without logs, caches and the databases of dpkg and the module
        tools."""
        left_out = ("/var/log/", "/var/cache/", "/var/lib/dpkg/", "/lib/modules/")
        found = self.run("find / -xdev").splitlines()
        return {path for path in found if not path.removeprefix("/usr").startswith(left_out)}


@pytest.fixture
def root(packages: list[dict[str, Path]], tmp_path: Path) -> Iterator[Root]:
    require_ready()
    root = Root(tmp_path / "root", packages[0])
    yield root
    shutil.rmtree(root.place)


SHIM_LOADS = """
cd /
test "$(python3 -c 'import sentineld.shim.native as n; print(n.library_path())')" = \
    /usr/lib/sentineld/sentineld/shim/libsentinelshim.so
"""
"""Checks that the shim, without the daemon's package, finds the C library of its own package."""

PROGRAMS_RUN = """
set -e
cd /
sentineld --check
sentinelctl --help >/dev/null
systemd-tmpfiles --create sentineld.conf
sentineld --tiers emulated:cxl 2>/run/log & daemon=$!
until sentinelctl status; do kill -0 $daemon; sleep 1; done
kill $daemon
wait $daemon
"""
"""Starts the daemon, waits until it answers, and stops it."""


REMAINING = ("/etc/group-", "/etc/gshadow-")
"""Files that remain after a purge: backups of the lists of groups."""


def test_packages_are_installed_upgraded_removed_and_purged(
    root: Root, packages: list[dict[str, Path]]
) -> None:
    old, new = packages
    before = root.files()
    root.install({name: path for name, path in old.items() if "shim" in name})
    root.run(SHIM_LOADS)
    root.install(old)
    assert "0.1.0~1" in root.run("dpkg-query --show sentineld")
    root.run(PROGRAMS_RUN)
    assert re.match(r"sentinel/\d+, 6\.1\..*: installed", root.run("dkms status"))
    assert root.run("stat --format '%U %G %a' /var/lib/sentineld") == "root sentineld 750\n"
    wanted = root.place / "etc/systemd/system/multi-user.target.wants/sentineld.service"
    assert wanted.is_symlink()

    settings = root.place / "etc/sentineld/config.toml"
    settings.write_text("metrics_port = 9465\n")
    (root.place / "etc/sentineld/config.d").mkdir()
    (root.place / "etc/sentineld/config.d/calibrated.toml").write_text("[tiers]\n")
    (root.place / "var/lib/sentineld/state").write_text("")
    root.install(new)
    assert "0.1.0~2" in root.run("dpkg-query --show sentineld")
    root.run(PROGRAMS_RUN)
    assert re.match(r"sentinel/\d+, 6\.1\..*: installed", root.run("dkms status"))
    assert settings.read_text() == "metrics_port = 9465\n"

    root.run(f"dpkg --remove {' '.join(PACKAGES)}")
    assert root.run("dkms status") == ""
    assert settings.exists()
    assert (root.place / "var/lib/sentineld/state").exists()
    assert not (root.place / "usr/lib/sentineld").exists()

    root.run(f"dpkg --purge {' '.join(PACKAGES)}")
    assert root.run("dpkg-query --show '*sentinel*' || true").split(":")[0].startswith("dpkg-query")
    assert root.run("getent group sentineld").startswith("sentineld:")
    changed = {path for path in root.files() ^ before if not path.startswith(REMAINING)}
    assert changed == set()
