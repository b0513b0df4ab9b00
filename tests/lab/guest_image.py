# SPDX-License-Identifier: Apache-2.0
"""The lab's guest image: a real Debian (or Ubuntu) that boots from its own disk.

``python -m tests.lab.guest_image`` builds it, or finds it in the cache, and prints its path.
The image depends only on :class:`Recipe`, and is cached atomically under the recipe's hash.

Files are copied through a mounted ext4, as on any installed disk: the kernel's allocator then
starts most large files on 64 KiB boundaries, which is why two images have common chunks.
``mkfs.ext4 -d`` packs them on 4 KiB boundaries, and is used only without loop devices.
``layout`` in ``info.json`` is "mounted" or "packed".

Commands that mount, or that run programs of the new system, run in a mount and PID namespace
that ends with this process, so that nothing needs a clean-up, even after SIGKILL.
"""

import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from collections.abc import Sequence

from acstor_common import errors
from tests.lab import guest_files
from tests.lab import runs

MIB = 1024 * 1024
SECTOR_BYTES = 512
PARTITION_OFFSET_BYTES = MIB
GRUB_FOLDER = pathlib.Path("/usr/lib/grub/i386-pc")
GRUB_MODULES = "biosdisk part_msdos ext2 normal linux serial terminal configfile".split()
BOOT_CODE_BYTES = 440
NEEDED_BYTES = 3 * 1024 * MIB
DEBOOTSTRAP_DEADLINE_S = 1200.0
SAY_EVERY_S = 5.0
ROOM = "setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child".split()
MARKER = guest_files.MARKER

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The inputs of the image."""

    suite: str
    kernel_package: str
    packages: tuple[str, ...] = ("systemd-sysv", "udev", "kmod", "initramfs-tools")
    size_bytes: int = 1536 * MIB
    files: dict[str, str] = dataclasses.field(default_factory=lambda: guest_files.FILES)
    links: dict[str, str] = dataclasses.field(default_factory=lambda: guest_files.LINKS)
    left_out: tuple[str, ...] = guest_files.LEFT_OUT
    grub_config: str = guest_files.GRUB_CONFIG

    @property
    def key(self) -> str:
        """The image's folder name in the cache."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return f"guest-{self.suite}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@dataclasses.dataclass(frozen=True)
class GuestImage:
    """A finished image: the disk as raw (sparse), qcow2, and compressed qcow2."""

    folder: pathlib.Path

    @property
    def raw(self) -> pathlib.Path:
        """The disk, sparse; a whole number of MiB."""
        return self.folder / "guest.raw"

    @property
    def qcow2(self) -> pathlib.Path:
        """The disk as qcow2 with uncompressed clusters."""
        return self.folder / "guest.qcow2"

    @property
    def compressed(self) -> pathlib.Path:
        """The disk as qcow2 with compressed clusters, as distributions publish theirs."""
        return self.folder / "guest.compressed.qcow2"

    @property
    def info(self) -> dict[str, object]:
        """Its inputs, build time and sizes."""
        facts: dict[str, object] = json.loads((self.folder / "info.json").read_text())
        return facts


def this_system() -> tuple[Recipe, str]:
    """Return the recipe for this machine, and the mirror that apt uses here.

    :raises errors.Unusable: neither Debian nor Ubuntu on x86-64, or no mirror is configured
    """
    release = dict(
        line.split("=", 1) for line in pathlib.Path("/etc/os-release").read_text().splitlines()
        if "=" in line
    )  # fmt: skip
    name = release.get("ID", "").strip('"')
    suite = release.get("VERSION_CODENAME", "").strip('"')
    kernels = {"debian": "linux-image-cloud-amd64", "ubuntu": "linux-image-virtual"}
    if name not in kernels or os.uname().machine != "x86_64":
        raise errors.Unusable(
            f"{name or 'this system'} on {os.uname().machine}",
            "the guest image is made from the packages of a Debian or Ubuntu x86-64 host",
        )
    return Recipe(suite, kernels[name]), mirror_of(suite)


def mirror_of(suite: str) -> str:
    """Return the URL of apt's mirror for ``suite`` on this machine."""
    lines = runs.tool(
        ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages"]
    ).splitlines()
    for line in lines:
        codename, _, uri = line.partition(" ")
        if codename == suite and uri.startswith("mirror+file:"):
            uri = pathlib.Path(uri.removeprefix("mirror+file:")).read_text().split()[0]
        if codename == suite and uri.startswith(("http://", "https://")):
            return uri
    raise errors.Unusable("apt", f"no HTTP mirror for {suite} is configured", "See sources.list(5)")


def _command(
    folder: pathlib.Path,
    say: Say,
    argv: Sequence[str | pathlib.Path],
    room: Sequence[str] = ROOM,
    deadline_s: float = DEBOOTSTRAP_DEADLINE_S,
    say_every_s: float = SAY_EVERY_S,
) -> None:
    """Run a command in new namespaces; log its output and report its last line.

    :param room: the command that makes the namespaces
    :raises subprocess.TimeoutExpired: it took longer
    """
    log = folder / "build.log"
    words = [*room, *map(str, argv)]
    with log.open("ab") as out:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
        try:
            status = _wait(process, log, say, deadline_s, say_every_s)
        except BaseException:
            process.kill()
            process.wait()
            raise
    if status:
        tail = log.read_text(errors="replace")[-1500:]
        raise errors.Unusable(f"building the guest image: {argv[0]}", tail.strip())


def _wait(
    process: subprocess.Popen[bytes],
    log: pathlib.Path,
    say: Say,
    deadline_s: float,
    say_every_s: float,
) -> int:
    """Wait for a process, report its last log line regularly; return its status."""
    begin = time.monotonic()
    while True:
        try:
            return process.wait(say_every_s)
        except subprocess.TimeoutExpired:
            passed_s = time.monotonic() - begin
            if passed_s > deadline_s:
                raise
            lines = log.read_text(errors="replace").splitlines() or [""]
            say(f"guest image: {passed_s:.0f} s: {lines[-1]}")


def _install(recipe: Recipe, mirror: str, folder: pathlib.Path, say: Say) -> pathlib.Path:
    """Install the new system's packages below ``folder``."""
    root = folder / "root"
    include = ",".join((recipe.kernel_package, *recipe.packages))
    # INITRD: the kernel's package makes no initramfs; _configure makes the only one.
    install = ["env", "INITRD=No", "debootstrap", "--variant=minbase", f"--include={include}"]
    _command(folder, say, [*install, recipe.suite, root, mirror])
    return root


def _configure(recipe: Recipe, root: pathlib.Path, folder: pathlib.Path, say: Say) -> None:
    """Write our files, delete unneeded ones, make the small initramfs."""
    for name, text in recipe.files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if text.startswith("#!") else 0o644)
    for name, target in recipe.links.items():
        link = root / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    shadow = root / "etc/shadow"
    shadow.write_text(guest_files.without_root_password(shadow.read_text()))
    for name in recipe.left_out:
        shutil.rmtree(root / name, ignore_errors=True)
    update = 'mount -t proc proc "$1/proc" && exec chroot "$1" update-initramfs -c -k all'
    _command(folder, say, ["sh", "-c", update, "sh", root])
    kernel = next((root / "boot").glob("vmlinuz-*")).name
    initramfs = next((root / "boot").glob("initrd.img-*")).name
    (root / "boot/grub").mkdir(exist_ok=True)
    config = recipe.grub_config.format(kernel=kernel, initramfs=initramfs)
    (root / "boot/grub/grub.cfg").write_text(config)


def _put_boot_loader(raw: pathlib.Path, folder: pathlib.Path) -> None:
    """Install GRUB for the BIOS: boot sector in sector 0, core from sector 1."""
    core = folder / "core.img"
    prefix = "(hd0,msdos1)/boot/grub"
    runs.tool(["grub-mkimage", "-O", "i386-pc", "-p", prefix, "-o", core, *GRUB_MODULES])
    code = core.read_bytes()
    if SECTOR_BYTES + len(code) > PARTITION_OFFSET_BYTES:
        raise errors.Unusable("GRUB", f"{len(code)} bytes do not fit before the partition")
    with raw.open("r+b") as disk:
        disk.write((GRUB_FOLDER / "boot.img").read_bytes()[:BOOT_CODE_BYTES])
        disk.seek(SECTOR_BYTES)
        disk.write(code)


def _begin_disk(raw: pathlib.Path, size_bytes: int, folder: pathlib.Path) -> None:
    """Make a BIOS-bootable disk with one partition without a file system."""
    with raw.open("wb") as disk:
        disk.truncate(size_bytes)
    start = PARTITION_OFFSET_BYTES // SECTOR_BYTES
    runs.tool(["sfdisk", "-q", raw], f"label: dos\nstart={start}, type=83, bootable\n")
    _put_boot_loader(raw, folder)


def _mkfs(raw: pathlib.Path, size_bytes: int, root: pathlib.Path | None = None) -> None:
    """Make the file system; with ``root``, containing the files below it."""
    blocks = f"{(size_bytes - PARTITION_OFFSET_BYTES) // 1024}k"
    mkfs = ["mkfs.ext4", "-q", "-F", "-L", "root", "-E", f"offset={PARTITION_OFFSET_BYTES}"]
    runs.tool([*mkfs, *(("-d", root) if root else ()), raw, blocks])


def make_packed_disk(
    raw: pathlib.Path, size_bytes: int, root: pathlib.Path, folder: pathlib.Path
) -> None:
    """Make a bootable disk of the files below ``root``, with /boot/grub/grub.cfg.

    :param folder: for temporary files
    :raises errors.Unusable: a tool is missing or fails
    """
    _begin_disk(raw, size_bytes, folder)
    _mkfs(raw, size_bytes, root)


def _make_disk(recipe: Recipe, root: pathlib.Path, folder: pathlib.Path, say: Say) -> str:
    """Make guest.raw from the files below ``root`` and return its layout."""
    raw = folder / "guest.raw"
    _begin_disk(raw, recipe.size_bytes, folder)
    _mkfs(raw, recipe.size_bytes)
    options = f"loop,offset={PARTITION_OFFSET_BYTES}"
    copy = 'mount -o "$1" "$2" "$3" && cp -a "$4/." "$3" && umount "$3"'
    mounted = folder / "mounted"
    mounted.mkdir()
    try:
        _command(folder, say, ["sh", "-c", copy, "sh", options, raw, mounted, root])
    except errors.Unusable:
        _mkfs(raw, recipe.size_bytes, root)
        return "packed"
    return "mounted"


def _build(recipe: Recipe, mirror: str, folder: pathlib.Path, say: Say) -> None:
    """Build an image in ``folder``."""
    if shutil.disk_usage(folder).free < NEEDED_BYTES:
        raise errors.Unusable(str(folder), f"building needs {NEEDED_BYTES // MIB} MiB of space")
    begin = time.monotonic()
    say(f"guest image: installing {recipe.suite} from {mirror} (about a minute)")
    root = _install(recipe, mirror, folder, say)
    say(f"guest image: {time.monotonic() - begin:.0f} s, packages are installed; initramfs")
    _configure(recipe, root, folder, say)
    say(f"guest image: {time.monotonic() - begin:.0f} s, writing the disk")
    layout = _make_disk(recipe, root, folder, say)
    say(f"guest image: {time.monotonic() - begin:.0f} s, writing it as qcow2 twice")
    raw, image = folder / "guest.raw", GuestImage(folder)
    runs.tool(["qemu-img", "convert", "-O", "qcow2", raw, image.qcow2])
    runs.tool(["qemu-img", "convert", "-c", "-O", "qcow2", raw, image.compressed])
    facts = {
        "suite": recipe.suite,
        "layout": layout,
        "build_s": round(time.monotonic() - begin, 1),
        "size_bytes": recipe.size_bytes,
        "allocated_bytes": raw.stat().st_blocks * SECTOR_BYTES,
        "qcow2_bytes": image.qcow2.stat().st_size,
        "compressed_bytes": image.compressed.stat().st_size,
    }
    (folder / "info.json").write_text(json.dumps(facts, indent=1) + "\n")
    for leftover in (root, folder / "mounted"):
        shutil.rmtree(leftover)
    (folder / "core.img").unlink()


def ensure(say: Say = print, changed: Callable[[Recipe], Recipe] | None = None) -> GuestImage:
    """Return this machine's guest image; build it if it is not cached.

    Concurrent processes wait for one that builds.

    :param changed: makes the recipe of another image from it
    :raises errors.Unusable: it cannot be built here; has the reason
    """
    recipe, mirror = this_system()
    recipe = changed(recipe) if changed else recipe
    final = runs.CACHE_FOLDER / recipe.key
    runs.CACHE_FOLDER.mkdir(parents=True, exist_ok=True)
    with (runs.CACHE_FOLDER / f"{recipe.key if changed else 'guest'}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not final.is_dir():
            with runs.Run() as run:
                _build(recipe, mirror, run.folder, say)
                run.folder.rename(final)
    image = GuestImage(final)
    say(f"guest image: {json.dumps(image.info)}")
    return image


def main() -> int:
    """Build or find the image; print its folder."""
    if os.geteuid():
        print("the guest image can only be built by root", file=sys.stderr)
        return 1
    try:
        print(ensure().folder)
    except errors.AcstorError as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
