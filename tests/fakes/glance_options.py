# SPDX-License-Identifier: Apache-2.0
"""Options of acstor's Glance services, without this machine's files."""

import os

from oslo_config import cfg

from acstor_glance import conf as glance_conf

GROUP = "acstor_glance"


def conf(*files: os.PathLike[str], **options: object) -> cfg.ConfigOpts:
    """Return the options of ``files``, with defaults for all others.

    :param options: overrides in [acstor_glance]
    """
    made = cfg.ConfigOpts()
    glance_conf.register_opts(made)
    made([], default_config_files=[str(file) for file in files], default_config_dirs=[])
    for name, value in options.items():
        made.set_override(name, str(value) if isinstance(value, os.PathLike) else value, GROUP)
    return made
