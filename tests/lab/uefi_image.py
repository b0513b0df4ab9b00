# SPDX-License-Identifier: Apache-2.0
"""The lab's guest on a disk that boots only by UEFI.

The guest's partition stays unchanged, including its boot menu.  The BIOS boot code is removed, a
GPT replaces the partition table, and an EFI system partition with GRUB follows.
"""

import pathlib
import shutil

from acstor_common import errors
from tests.lab import guest_image
from tests.lab import runs

MIB = guest_image.MIB
EFI_PARTITION_BYTES = 16 * MIB
GPT_COPY_BYTES = MIB
GRUB_FOLDER = pathlib.Path("/usr/lib/grub/x86_64-efi")
GRUB_MODULES = "part_gpt ext2 normal linux serial terminal configfile".split()
LOADER = "::EFI/BOOT/BOOTX64.EFI"
"""The default boot loader's path for removable media in UEFI."""


def make(guest: guest_image.GuestImage, folder: pathlib.Path) -> pathlib.Path:
    """Make the disk in ``folder`` and return its path; it is sparse.

    :raises errors.Unusable: a tool is missing or fails
    """
    if not GRUB_FOLDER.is_dir() or shutil.which("mcopy") is None:
        raise errors.Unusable(
            "GRUB for UEFI", "it or mtools is not installed: run tools/install.sh"
        )
    disk = folder / "uefi.raw"
    runs.tool(["cp", "--sparse=always", guest.raw, disk])
    guest_end = disk.stat().st_size
    with disk.open("r+b") as file:
        file.write(bytes(guest_image.PARTITION_OFFSET_BYTES))
        file.truncate(guest_end + EFI_PARTITION_BYTES + GPT_COPY_BYTES)
    sectors = [
        size // guest_image.SECTOR_BYTES
        for size in (guest_image.PARTITION_OFFSET_BYTES, guest_end, EFI_PARTITION_BYTES)
    ]
    start, end, efi = sectors
    table = f"start={start}, size={end - start}, type=linux\nstart={end}, size={efi}, type=uefi\n"
    runs.tool(["sfdisk", "-q", disk], f"label: gpt\n{table}")
    _put_boot_loader(f"{disk}@@{guest_end}", efi, folder)
    return disk


def _put_boot_loader(partition: str, sectors: int, folder: pathlib.Path) -> None:
    """Make the EFI system partition; its GRUB finds the menu beside the kernel."""
    loader = folder / "loader.efi"
    prefix = "(hd0,gpt1)/boot/grub"
    runs.tool(["grub-mkimage", "-O", "x86_64-efi", "-p", prefix, "-o", loader, *GRUB_MODULES])
    runs.tool(["mformat", "-i", partition, "-T", str(sectors), "::"])
    runs.tool(["mmd", "-i", partition, "::EFI", "::EFI/BOOT"])
    runs.tool(["mcopy", "-i", partition, loader, LOADER])
    loader.unlink()
