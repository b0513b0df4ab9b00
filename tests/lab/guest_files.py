# SPDX-License-Identifier: Apache-2.0
"""The guest image's content besides its packages: files, links, left-out paths."""

MARKER = "ACSTOR-LAB-BOOTED"
"""Starts the guest's console line at the end of the boot."""

MODULES = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic")
"""The initramfs's modules; a full initramfs is slow to unpack in emulation."""

_BEFORE_LOGIN = """\
[Service]
ExecStartPre=-/usr/local/sbin/lab-booted
"""
"""Part of the login prompt's unit: the marker always comes just before the prompt."""

# It writes to the kernel's log: a starting getty hangs up all other writers of its line.
_BOOTED_SCRIPT = f"""\
#!/bin/sh
read -r uptime _ < /proc/uptime
read -r reads _ sectors _ writes _ written _ < /sys/block/vda/stat
echo "{MARKER} uptime_s=$uptime reads=$reads read_sectors=$sectors writes=$writes \
write_sectors=$written" > /dev/kmsg
"""

FILES = {
    "etc/hostname": "lab-guest\n",
    "etc/fstab": "/dev/vda1 / ext4 defaults,noatime 0 1\n",
    "etc/initramfs-tools/modules": "".join(f"{module}\n" for module in MODULES),
    "etc/initramfs-tools/conf.d/lab": "MODULES=list\nCOMPRESS=gzip\n",
    "etc/systemd/system/serial-getty@ttyS0.service.d/lab.conf": _BEFORE_LOGIN,
    "usr/local/sbin/lab-booted": _BOOTED_SCRIPT,
}

LINKS = {
    "etc/systemd/system/getty.target.wants/serial-getty@ttyS0.service": (
        "/lib/systemd/system/serial-getty@.service"
    ),
    "etc/systemd/system/apt-daily.timer": "/dev/null",
    "etc/systemd/system/apt-daily-upgrade.timer": "/dev/null",
}

LEFT_OUT = (
    "var/cache/apt/archives",
    "var/lib/apt/lists",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
)

GRUB_CONFIG = """\
serial --unit=0 --speed=115200
terminal_input serial console
terminal_output serial console
set timeout=0
menuentry lab {{
  linux /boot/{kernel} root=/dev/vda1 rw console=tty0 console=ttyS0,115200n8 net.ifnames=0 panic=5
  initrd /boot/{initramfs}
}}
"""


def without_root_password(shadow: str) -> str:
    """Return the text of /etc/shadow, changed so that root logs in without a password."""
    lines = shadow.splitlines(keepends=True)
    return "".join(
        f"root::{line.split(':', 2)[2]}" if line.startswith("root:") else line for line in lines
    )
