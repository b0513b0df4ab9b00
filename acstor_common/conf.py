# SPDX-License-Identifier: Apache-2.0
"""Options that several rooms share, and how a service reads its own.

Nobody reads a global CONF: ``register_opts(conf)`` takes the object.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

from oslo_config import cfg
from oslo_log import log

GROUP = cfg.OptGroup("acstor", title="What every acstor process of a host shares")

Options = Iterable[tuple[cfg.OptGroup, Sequence[cfg.Opt]]]

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "control_socket",
        default="/run/acstor/control.sock",
        help="Unix socket on which the agent of this host takes requests.",
    ),
    cfg.StrOpt(
        "mount_point",
        default="/var/lib/acstor/mirror",
        help="Folder on which the agent shows the mirrors: images/<image id>.raw.",
    ),
]


def register(conf: cfg.ConfigOpts, group: cfg.OptGroup, options: Sequence[cfg.Opt]) -> None:
    """Register options of a group with ``conf`` alone.

    oslo.config copies a group but not its table of options: objects that are given the same group
    would share what is set in one of them.
    """
    conf.register_group(cfg.OptGroup(group.name, title=group.title, help=group.help))
    conf.register_opts(options, group=group.name)


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the shared options with ``conf``."""
    register(conf, GROUP, OPTS)


def load(
    conf: cfg.ConfigOpts,
    args: Sequence[str],
    prog: str,
    register: Callable[[cfg.ConfigOpts], None],
    options: Options,
) -> None:
    """Read a service's configuration into ``conf`` as :func:`read` does, and set up the log."""
    log.register_options(conf)
    read(conf, args, prog, register, options)
    log.setup(conf, "acstor")


def read(
    conf: cfg.ConfigOpts,
    args: Sequence[str],
    prog: str,
    register: Callable[[cfg.ConfigOpts], None],
    options: Options,
    project: str = "acstor",
) -> None:
    """Read the files that the command line ``args`` names into ``conf``.

    :param prog: whose files are read where ``args`` names none, with ``project``
    :param register: registers the room's options
    :param options: those whose values are looked at now, not when they are first asked for
    :raises cfg.Error: there is no such file, or some option's value makes no sense
    """
    register(conf)
    conf(args, project=project, prog=prog)
    for group, members in options:
        for option in members:
            _ = conf[group.name][option.dest]
