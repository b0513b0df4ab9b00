# SPDX-License-Identifier: Apache-2.0
"""Tempest's plug-in interface: the folder of the tests, and their options."""

import pathlib

from oslo_config import cfg
from tempest.test_discover import plugins

from acstor_tempest_plugin import config


class AcstorTempestPlugin(plugins.TempestPlugin):
    """The plug-in of the entry point ``tempest.test_plugins``."""

    def load_tests(self) -> tuple[str, str]:
        """Return the folder of the tests and the folder that they are imported from."""
        folder = pathlib.Path(__file__).parent
        return str(folder / "tests"), str(folder.parent)

    def register_opts(self, conf: cfg.ConfigOpts) -> None:
        """Add the options to Tempest's."""
        conf.register_opt(config.SERVICE, group="service_available")
        conf.register_group(config.GROUP)
        conf.register_opts(config.OPTIONS, group=config.GROUP)

    def get_opt_lists(self) -> list[tuple[str, list[cfg.Opt]]]:
        """Return the options for Tempest's sample of a configuration."""
        return [("service_available", [config.SERVICE]), (config.GROUP.name, config.OPTIONS)]
