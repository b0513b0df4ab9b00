# SPDX-License-Identifier: Apache-2.0
"""The options of acstor's Glance services, whatever files this machine has."""

import os

from oslo_config import cfg

from acstor_glance import conf as glance_conf

GROUP = "acstor_glance"


def conf(*files: os.PathLike[str], **options: object) -> cfg.ConfigOpts:
    """Return what ``files`` say, the defaults beside.

    :param options: of [acstor_glance], in place of what files say
    """
    made = cfg.ConfigOpts()
    glance_conf.register_opts(made)
    made([], default_config_files=[str(file) for file in files], default_config_dirs=[])
    for name, value in options.items():
        made.set_override(name, str(value) if isinstance(value, os.PathLike) else value, GROUP)
    return made
