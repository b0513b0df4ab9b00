# SPDX-License-Identifier: Apache-2.0
"""Enables and disables acstor by one file, which stock Nova accepts as well."""

import contextlib
import pathlib

from oslo_config import cfg

from acstor_common import errors
from acstor_common.service import conf as common_conf
from acstor_common.util import atomic_file
from acstor_nova import conf as nova_conf

FOLDER = pathlib.Path("/etc/nova/nova-compute.conf.d")
"""Folder that only nova-compute reads, by oslo.config's convention."""
NAME = "acstor.conf"
MODE = 0o644
TEXT = """\
# For nova-compute on a host with acstor-agent: /etc/nova/nova-compute.conf.d/acstor.conf
# (acstor-nova-manage enable writes it, disable removes it). It sets acstor as Nova's image backend
# ([libvirt] images_type), unless nova.conf names another.
[DEFAULT]
config_source = acstor

[acstor]
driver = acstor
# With a gateway beside Glance, snapshots upload only changed data:
# gateway_url = https://controller.example:9711
"""


def enable(folder: pathlib.Path, *, is_trial: bool = False) -> bool:
    """Write the file if it is missing, unless a trial; return whether that changes."""
    file = folder / NAME
    try:
        if file.exists():
            return False
        if not is_trial:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            with atomic_file.atomic_write(file, MODE) as written:
                written.write(TEXT.encode())
    except OSError as e:
        raise errors.Unusable(str(file), f"cannot be written: {e.strerror}") from e
    return True


def disable(folder: pathlib.Path, *, is_trial: bool = False) -> bool:
    """Delete the file, unless a trial; return whether that changes anything."""
    file = folder / NAME
    try:
        if not file.exists():
            return False
        if not is_trial:
            file.unlink()
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()
    except OSError as e:
        raise errors.Unusable(str(file), f"cannot be removed: {e.strerror}") from e
    return True


def find_other_settings(conf: cfg.ConfigOpts, folder: pathlib.Path) -> list[str]:
    """Return options in nova-compute's other files that name acstor, as text."""
    found = []
    for file in common_conf.files(conf):
        if file.resolve() == (folder / NAME).resolve():
            continue
        sections: dict[str, dict[str, list[str]]] = {}
        with contextlib.suppress(OSError, cfg.ParseError):
            cfg.ConfigParser(str(file), sections).parse()
        for section, option in (("DEFAULT", "config_source"), ("libvirt", "images_type")):
            values = ",".join(sections.get(section, {}).get(option, []))
            if nova_conf.NAME in [value.strip() for value in values.split(",")]:
                found.append(f"{file}: [{section}] {option} = {values}")
    return found
