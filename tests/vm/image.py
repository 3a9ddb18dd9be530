# SPDX-License-Identifier: Apache-2.0
"""Builds one guest image per recipe, and caches it.

An image is the folder build/vm/<suite>-<hash of the recipe>/:

    root/         the root tree; rootfs.in_root runs commands in it at native speed
    disk.ext4     the same tree as a file system (sparse)
    vmlinuz, initrd.img
    key, key.pub  the only key accepted for root; generated with the image
    known_hosts   the image's host key
    packages      name and version of each package

An image is built in a folder with a temporary name, while a lock is held. At the end, this folder
is renamed, so a folder with an image's name is always complete.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import initrd, mirror
from . import recipe as recipes
from .host import CACHE, MachineError, find_tool, phase, require_ready, say
from .initrd import make_initrd
from .mirror import source_lines
from .recipe import MAIN, RECIPES, Recipe

PARTIAL_SUFFIX = ".partial"


@dataclasses.dataclass(frozen=True)
class Image:
    """One image on disk."""

    directory: Path

    @property
    def root(self) -> Path:
        return self.directory / "root"

    @property
    def disk(self) -> Path:
        return self.directory / "disk.ext4"

    @property
    def kernel(self) -> Path:
        return self.directory / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.directory / "initrd.img"

    @property
    def key(self) -> Path:
        return self.directory / "key"

    @property
    def known_hosts(self) -> Path:
        return self.directory / "known_hosts"

    @property
    def kernel_release(self) -> str:
        """The kernel release, as in `uname -r`."""
        return kernel_release(self.root)


def image_name(recipe: Recipe) -> str:
    """The cache key: the suite and a hash of the recipes and of the code that builds images."""
    digest = hashlib.sha256(recipe.suite.encode())
    for source in (recipes.__file__, __file__, initrd.__file__, mirror.__file__):
        digest.update(Path(source).read_bytes())
    return f"{recipe.suite}-{digest.hexdigest()[:16]}"


def find_image(recipe: Recipe = MAIN) -> Image | None:
    """The cached image of a recipe, or None. Does not wait for a build."""
    directory = CACHE / image_name(recipe)
    return Image(directory) if directory.is_dir() else None


def ensure_image(recipe: Recipe = MAIN) -> Image:
    """The image of a recipe, from the cache or built."""
    if image := find_image(recipe):
        return image
    require_ready()
    with _build_lock() as lock:
        # Another build may have finished before this one got the lock.
        if image := find_image(recipe):
            return image
        _remove_all_but({image_name(other) for other in RECIPES.values()})
        return _build(recipe, lock)


def kernel_release(root: Path) -> str:
    """The kernel release in a root tree. Raises MachineError unless the tree has one kernel."""
    releases = sorted(path.name for path in (root / "lib/modules").iterdir())
    if len(releases) != 1:
        raise MachineError(f"expected one kernel in {root}, found {releases}")
    return releases[0]


@contextlib.contextmanager
def _build_lock() -> Iterator[int]:
    """Hold the lock of all builds; yields its file descriptor."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another build is running, waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def _remove_all_but(names: set[str]) -> None:
    """Remove images of old recipes and of interrupted builds. Call with the lock held."""
    for entry in CACHE.iterdir():
        if entry.is_dir() and entry.name not in names and (entry / "root").is_dir():
            remove_tree(entry)


def remove_tree(tree: Path) -> None:
    """Remove a tree, except file systems mounted in it."""
    subprocess.run(["rm", "-rf", "--one-file-system", "--", str(tree)], check=True)


def _build(recipe: Recipe, lock: int) -> Image:
    final = CACHE / image_name(recipe)
    partial = CACHE / (final.name + PARTIAL_SUFFIX)
    if partial.exists():
        remove_tree(partial)  # left by a killed build
    partial.mkdir()
    image = Image(partial)
    try:
        with phase(f"packages of Debian {recipe.suite} (mmdebstrap)"):
            _install_packages(recipe, image, lock)
        with phase("configuration, keys and units"):
            _configure(recipe, image)
        with phase("file system (mke2fs)"):
            _make_disk(image, recipe.free_bytes)
    except BaseException:
        log = partial / "mmdebstrap.log"
        if log.exists():
            shutil.copy(log, CACHE / "failed-build.log")
        remove_tree(partial)
        raise
    partial.rename(final)
    say(f"image ready in {final}")
    return Image(final)


def _install_packages(recipe: Recipe, image: Image, lock: int) -> None:
    early = image.directory / "early"
    early.mkdir()
    recipes.write_files(early, dict(recipe.early_files))
    release, added = recipe.release or recipe.suite, recipe.added_suite
    command = [
        # mmdebstrap is terminated when this process dies, and the mounts disappear
        # with mmdebstrap's mount namespace.
        *("setpriv", "--pdeathsig", "TERM"),
        *("unshare", "--mount", "--propagation", "private"),
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        "--format=directory",
        f"--include={','.join(recipe.packages)}",
        *(f"--dpkgopt={option}" for option in recipes.DPKG_OPTIONS),
        f'--setup-hook=cp -rT "{early}" "$1"',
        '--setup-hook=dpkg-divert --root="$1" --no-rename'
        f" --divert {recipes.DIVERTED_TO} --add {recipes.DIVERTED}",
        # -E: ignore PYTHONDONTWRITEBYTECODE, so that the imports write bytecode
        f'--customize-hook=chroot "$1" python3 -E -c "{recipe.imports}"',
        release,
        str(image.root),
        *(source_lines(release, (release, added)) if added else ()),
    ]
    log = image.directory / "mmdebstrap.log"
    with log.open("w") as output:
        # mmdebstrap inherits the lock, so the next build waits until mmdebstrap has ended.
        status = subprocess.run(
            command, stdout=output, stderr=subprocess.STDOUT, pass_fds=[lock]
        ).returncode
    if status != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise MachineError(f"mmdebstrap ended with status {status}:\n{tail}")
    shutil.rmtree(early)


def _configure(recipe: Recipe, image: Image) -> None:
    root = image.root
    recipes.write_files(root, recipe.files)
    # If this file is missing or contains "uninitialized", systemd treats the boot as the first boot
    # and applies all presets; see machine-id(5).
    (root / "etc/machine-id").write_text(f"{uuid.uuid4().hex}\n")
    _make_keys(image)
    present = [unit for unit in recipes.UNITS_OFF if _has_unit(root, unit)]
    _systemctl(root, "disable", present)
    _systemctl(root, "mask", recipes.UNITS_MASKED)
    _systemctl(root, "enable", ["ssh.service"])
    _systemctl(root, "set-default", ["multi-user.target"])
    # sshd starts root's shell for each command; dash starts faster than bash.
    command = ["chroot", str(root), "usermod", "--shell", "/bin/sh", "root"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    # If these stamps are older than /usr, systemd treats each boot as the first after an upgrade.
    for stamp in ("etc/.updated", "var/.updated"):
        (root / stamp).touch()
    release = kernel_release(root)
    shutil.copy(root / f"boot/vmlinuz-{release}", image.kernel)
    image.initrd.write_bytes(make_initrd(root, release))
    packages = subprocess.run(
        ["chroot", str(root), "dpkg-query", "-W"], check=True, capture_output=True, text=True
    )
    (image.directory / "packages").write_text(packages.stdout)


def _systemctl(root: Path, verb: str, units: Sequence[str]) -> None:
    command = ["chroot", str(root), "systemctl", "--quiet", verb, *units]
    subprocess.run(command, check=True, capture_output=True, text=True)


def _has_unit(root: Path, unit: str) -> bool:
    name, _, suffix = unit.rpartition(".")
    template = f"{name.partition('@')[0]}@.{suffix}" if "@" in name else unit
    return (root / "usr/lib/systemd/system" / template).exists()


def _make_keys(image: Image) -> None:
    """Generate a login key and a host key for this image."""
    keygen = find_tool("ssh-keygen") or "ssh-keygen"
    host_key = image.root / "etc/ssh/ssh_host_ed25519_key"
    for old in host_key.parent.glob("ssh_host_*"):
        old.unlink()
    for path, comment in ((image.key, "driver"), (host_key, recipes.HOSTNAME)):
        command = [keygen, "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
        subprocess.run(command, check=True)
    authorized = image.root / "root/.ssh/authorized_keys"
    authorized.parent.mkdir(mode=0o700, exist_ok=True)
    authorized.write_text(image.key.with_suffix(".pub").read_text())
    authorized.chmod(0o600)
    public = host_key.with_suffix(".pub").read_text().split()
    image.known_hosts.write_text(f"{recipes.HOSTNAME} {public[0]} {public[1]}\n")


def _make_disk(image: Image, free_bytes: int) -> None:
    used = subprocess.run(
        ["du", "-sx", "--block-size=1", str(image.root)],
        check=True,
        capture_output=True,
        text=True,
    )
    size_bytes = int(used.stdout.split()[0]) * 11 // 10 + free_bytes
    size_bytes -= size_bytes % 4096
    with image.disk.open("wb") as disk:
        disk.truncate(size_bytes)
    # ext4 needs no journal here: guests write to a temporary overlay of this disk.
    command = [find_tool("mke2fs") or "mke2fs", "-q", "-F", "-t", "ext4", "-m", "0"]
    command += ["-b", "4096", "-O", "^has_journal", "-d", str(image.root), str(image.disk)]
    subprocess.run(command, check=True, capture_output=True, text=True)
