# SPDX-License-Identifier: Apache-2.0
"""A small disk; its guest boots by GRUB and prints the disk's checksums endlessly.

Kernel and initramfs are those of the lab's guest (``tests.lab.guest_image``), with a busybox and an
init added.  The guest never writes, so it reads its image's bytes.  For each part it prints a line
with a checksum, the only evidence of its reads.
"""

import hashlib
import pathlib
import re
import shutil

from acstor_common import errors
from tests.lab import guest_image
from tests.lab import local
from tests.lab import runs

MIB = guest_image.MIB
SIZE_BYTES = 40 * MIB
PART_BYTES = MIB
PAYLOAD_BYTES = 10 * MIB
"""Beside kernel and initramfs, which have 20 MiB: incompressible bytes."""
BUSYBOX = pathlib.Path("/bin/busybox")
MARKER = "ACSTOR-READ"
FAULT = "ACSTOR-FAULT"

# O_DIRECT: past the guest's own page cache.  dd's errors go to the console.
INIT = f"""\
#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev
/bin/busybox mount -t devtmpfs none /dev
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t sysfs none /sys
exec > /dev/console 2>&1 < /dev/null
modprobe virtio_pci
modprobe virtio_blk
until [ -b /dev/vda ]; do /bin/busybox sleep 1; done
parts=$(($(/bin/busybox cat /sys/block/vda/size) / {PART_BYTES // 512}))
round=0
while :; do
  part=0
  while [ $part -lt $parts ]; do
    sum=$( (/bin/busybox dd if=/dev/vda bs={PART_BYTES} skip=$part count=1 iflag=direct \
2> /tmp/why || echo bad >> /tmp/bad) | /bin/busybox sha256sum)
    if [ -e /tmp/bad ]; then
      echo "{FAULT} $round $part $(/bin/busybox tr '\\n' ' ' < /tmp/why)"
      /bin/busybox rm /tmp/bad
    else
      echo "{MARKER} $round $part ${{sum%% *}}"
    fi
    part=$((part + 1))
  done
  round=$((round + 1))
done
"""
GRUB_CONFIG = """\
serial --unit=0 --speed=115200
terminal_output serial console
set timeout=0
menuentry lab {
  linux /vmlinuz console=ttyS0,115200n8 panic=5
  initrd /initrd
}
"""
READ = re.compile(rf"{MARKER} (\d+) (\d+) ([0-9a-f]{{64}})")


def make(image: guest_image.GuestImage, folder: pathlib.Path, seed: int) -> pathlib.Path:
    """Make the disk in ``folder``, which must be empty; return its path.

    :raises errors.Unusable: a tool is missing or fails
    """
    if not BUSYBOX.exists():
        raise errors.Unusable(str(BUSYBOX), "busybox-static is not installed: run tools/install.sh")
    root = folder / "root"
    (root / "boot/grub").mkdir(parents=True)
    _take_kernel(image.raw, root)
    with (root / "initrd").open("ab") as initrd:
        initrd.write(_own_initramfs(folder))
    (root / "boot/grub/grub.cfg").write_text(GRUB_CONFIG)
    (root / "payload").write_bytes(local.random_bytes(PAYLOAD_BYTES, seed, zero_share=0.1))
    disk = folder / "reading.raw"
    guest_image.make_packed_disk(disk, SIZE_BYTES, root, folder)
    shutil.rmtree(root)
    return disk


def _take_kernel(raw: pathlib.Path, root: pathlib.Path) -> None:
    """Copy kernel and initramfs out of the lab's guest without a mount of its disk."""
    disk = f"{raw}?offset={guest_image.PARTITION_OFFSET_BYTES}"
    names = runs.tool(["debugfs", "-R", "ls -p /boot", disk])
    for name, wanted in (("vmlinuz", "vmlinuz-[^/]+"), ("initrd", "initrd.img-[^/]+")):
        found = re.search(rf"/({wanted})/", names)
        if found is None:
            raise errors.Unusable(str(raw), f"its /boot has no {name}")
        runs.tool(["debugfs", "-R", f"dump /boot/{found[1]} {root / name}", disk])


def _own_initramfs(folder: pathlib.Path) -> bytes:
    """Return an addition to the initramfs; later files replace those of the same name."""
    own = folder / "own"
    (own / "bin").mkdir(parents=True)
    (own / "tmp").mkdir()
    shutil.copy(BUSYBOX, own / "bin/busybox")
    (own / "init").write_text(INIT)
    (own / "init").chmod(0o755)
    script = 'cd "$1" && find init bin/busybox tmp | "$2" cpio -o -H newc > "$3"'
    runs.tool(["sh", "-c", script, "sh", own, BUSYBOX, folder / "own.cpio"])
    shutil.rmtree(own)
    return (folder / "own.cpio").read_bytes()


def sums(disk: bytes) -> list[str]:
    """Return the lines that the guest must print for each part of a disk."""
    parts = (disk[at : at + PART_BYTES] for at in range(0, len(disk), PART_BYTES))
    return [hashlib.sha256(part).hexdigest() for part in parts]
