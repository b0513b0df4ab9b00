# SPDX-License-Identifier: Apache-2.0
"""Methods by which a listener makes boot images, chosen once at its start."""

import logging
from typing import NamedTuple

from oslo_config import cfg

from acstor_common import errors
from acstor_glance import sandbox
from acstor_glance.boot import boot_guest

LOG = logging.getLogger(__name__)


class BuildModes(NamedTuple):
    """Whether a listener builds boot images, and uses recorded boots."""

    builds: bool
    records: bool

    @property
    def makes_boot_images(self) -> bool:
        """Whether boot images are made at all."""
        return self.builds or self.records


def choose_modes(conf: cfg.ConfigOpts) -> BuildModes:
    """Return and log the methods that ``[acstor_glance] boot_images`` allows here."""
    option = conf.acstor_glance.boot_images
    builds, records = option in ("built", "both", "auto"), option in ("recorded", "both", "auto")
    why = why_not_built(sandbox.Sandbox(conf.acstor_glance.builder_sandbox)) if builds else ""
    if why and option == "auto":
        LOG.info("boot images are made from recorded boots only, none is built here: %s", why)
        return BuildModes(False, records)
    if why:  # builds are tried anyway, since the host may be repaired
        LOG.error("no boot images will be built: %s", why)
    else:
        LOG.info("boot images are built here: %s; made from recorded boots: %s", builds, records)
    return BuildModes(builds, records)


def why_not_built(isolation: sandbox.Sandbox) -> str:
    """Return why this host cannot boot images; empty if it can."""
    for program in (boot_guest.QEMU, boot_guest.QEMU_IMG):
        if not sandbox.is_installed(isolation, program):
            return f"{program} is not installed"
    try:
        sandbox.check_sandbox(isolation)
    except errors.Unusable as exc:
        return str(exc)
    return ""
