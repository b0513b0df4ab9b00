# SPDX-License-Identifier: Apache-2.0
"""acstor's listener beside the lab's Glance, and the import plug-in's options.

All listeners of a cloud have the same options but for their ports, as in production.
"""

import pathlib
import subprocess
from collections.abc import Mapping
from collections.abc import Sequence
from typing import IO

from tests.lab import forked_commands
from tests.lab import runs
from tests.lab import tuned
from tests.lab.openstack import api
from tests.lab.openstack import cloud
from tests.lab.openstack import daemon
from tests.lab.openstack import ini

RECONCILE_S = 3600  # so that only messages cause work, unless a test sets it
# As in the installation guide: tenants do not see acstor's image properties.
PROTECTIONS: Mapping[str, object] = {
    "property_protection_file": runs.CHECKOUT / "etc/glance/property-protections-roles.conf",
    "property_protection_rule_format": "roles",
}


def options(lab: cloud.Cloud, state_dir: pathlib.Path, **changed: object) -> dict[str, object]:
    """Return the group ``[acstor_glance]`` for a process beside the lab's Glance."""
    return {
        **api.credentials(lab.keystone.auth_url, "acstor"),
        "region_name": api.REGION,
        "state_dir": state_dir,
        "metrics_listen": "",
        **changed,
    }


def plugin_sections(lab: cloud.Cloud, state_dir: pathlib.Path, **changed: object) -> ini.Sections:
    """Return Glance's options for the import plug-in."""
    return {
        "image_import_opts": {"image_import_plugins": "[acstor_prehash]"},
        "acstor_glance": options(lab, state_dir, **changed),
    }


class Listener(daemon.Daemon):
    """``acstor-glance-listener`` as a process of its own.

    :param constants: that differ from the lab's
    :param sections: more of its configuration
    :param changed: options of [acstor_glance] that differ from the lab's
    """

    def __init__(
        self,
        name: str,
        lab: cloud.Cloud,
        folder: pathlib.Path,
        constants: tuned.Constants | None = None,
        sections: ini.Sections | None = None,
        **changed: object,
    ) -> None:
        super().__init__(name, folder)
        own = {tuned.RECONCILE_INTERVAL_S: RECONCILE_S, tuned.METRICS_KEPT_S: 0.0}
        self._constants = {**own, **(constants or {})}
        self.port = daemon.port_of(folder, name)
        self.conf_file = folder / f"{name}.conf"
        defaults = {
            "metrics_listen": f"{daemon.LOOPBACK}:{self.port}",
            "boot_images": "recorded",  # most tests need no boots
        }
        self._sections: ini.Sections = {
            "DEFAULT": {"transport_url": lab.rabbitmq.url, "debug": False},
            "acstor_glance": options(lab, folder / "state", **{**defaults, **changed}),
            **(sections or {}),
        }

    def configure(self) -> None:
        """Write its configuration."""
        ini.write(self.conf_file, self._sections)

    def environment(self) -> Mapping[str, str]:
        """Return no variables: the configuration is one file."""
        return {}

    def argv(self) -> Sequence[str | pathlib.Path]:
        """Return the command to run."""
        command = tuned.argv(forked_commands.GLANCE_LISTENER, self._constants)
        return [*command, "--config-file", self.conf_file]

    def launch(self, out: IO[bytes]) -> subprocess.Popen[bytes] | forked_commands.ForkedCommand:
        """Start the process, as a fork if possible."""
        if (forks := forked_commands.server(forked_commands.GLANCE_LISTENER)) is None:
            return super().launch(out)
        return forks.start(["--config-file", self.conf_file], self._constants, out)

    def is_ready(self) -> bool:
        """Return whether it consumes from the broker."""
        return "listening for notifications" in self.log()
