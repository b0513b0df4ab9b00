# SPDX-License-Identifier: Apache-2.0
"""Options that services share, and the loader of configuration files; there is no global CONF."""

import contextlib
import logging
import pathlib
import re
import socket
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

from oslo_config import cfg
from oslo_config import iniparser
from oslo_config import types
from oslo_log import log

from acstor_common.service import log_format
from acstor_common.service import unknown_options
from acstor_common.util import byte_sizes

LOG = logging.getLogger(__name__)

GROUP = cfg.OptGroup("acstor", title="Options of all acstor processes of a host")

Options = Iterable[tuple[cfg.OptGroup, Sequence[cfg.Opt]]]

OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "control_socket",
        default="/run/acstor/control.sock",
        help="Unix socket of the agent of this host for control requests.",
    ),
    cfg.StrOpt(
        "mount_point",
        default="/var/lib/acstor/mirror",
        help="Folder where the agent mounts the mirrors: images/<image id>.raw.",
    ),
]

AGENT_GROUP = cfg.OptGroup("acstor_agent", title="The per-host agent")

HOST_OPTS: list[cfg.Opt] = [
    cfg.StrOpt(
        "host",
        default=socket.gethostname(),
        sample_default="<the host name>",
        help="Id of this host on the ring. It must be unique in the cloud and must not change.",
    ),
    cfg.StrOpt(
        "state_dir",
        default="/var/lib/acstor/state",
        help="Folder for persistent state: chunk maps of attached images, data that guests wrote "
        "to disks, and the lock. Only the agent's user may enter it (mode 0700).",
    ),
    cfg.StrOpt(
        "identity_dir",
        help="Folder with ca.pem (one or more trusted authorities), cert.pem (this host's "
        "certificate, of an Ed25519 key, whose only DNS subjectAltName is the option host) and "
        "key.pem. The default is the folder identity of state_dir; keep it where the decision "
        "service issues certificates. The agent reloads replaced files without losing "
        "connections.",
    ),
    cfg.StrOpt(
        "ring_file",
        help="JSON file with the v-node table; the agent reloads it when it changes. Without it, "
        "and without a table from the decision service or the control socket, this host reads only "
        "from its sources.",
    ),
]
"""Options of the agent that the checkpoint daemon of its host reads, too."""

_INVALID = re.compile(
    r"Value for option \S+ from LocationInfo\(location=.*?, detail='(.*?)'\) is not valid: (.*)",
    re.DOTALL,
)


class Size(types.Integer):
    """Type of an option that is a size: bytes, or such as 20GiB."""

    def __init__(self, least: int) -> None:
        super().__init__(min=least, type_name="size in bytes, or such as 20GiB")

    def __call__(self, value: object) -> int:
        """Return the size in bytes, or raise ValueError."""
        found = byte_sizes.parse(value) if isinstance(value, str) else int(str(value))
        if self.min is not None and found < self.min:
            raise ValueError(
                f"{byte_sizes.in_units(found)} is less than {byte_sizes.in_units(int(self.min))}"
            )
        return found


def size_opt(name: str, default: int, help: str, least: int = 0) -> cfg.IntOpt:
    """Return an option that is a size."""
    text = f"{help} Bytes, or a size such as {byte_sizes.in_units(default)}."
    option = cfg.IntOpt(
        name, default=default, sample_default=byte_sizes.in_units(default), help=text
    )
    option.type = Size(least)
    return option


def register(conf: cfg.ConfigOpts, group: cfg.OptGroup, options: Sequence[cfg.Opt]) -> None:
    """Register options in a copy of ``group``: ``conf`` objects must not share its table."""
    conf.register_group(cfg.OptGroup(group.name, title=group.title, help=group.help))
    conf.register_opts(options, group=group.name)


def identity_dir(agent: cfg.ConfigOpts.GroupAttr) -> pathlib.Path:
    """Return the folder of the host's certificate, from the options of the agent."""
    return pathlib.Path(agent.identity_dir or pathlib.Path(agent.state_dir) / "identity")


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the shared options with ``conf``."""
    register(conf, GROUP, OPTS)


def load(
    conf: cfg.ConfigOpts,
    args: Sequence[str],
    prog: str,
    register: Callable[[cfg.ConfigOpts], None],
    options: Options,
    description: str = "",
) -> None:
    """Read a service's configuration as :func:`read` does, set up logging, log unknown options."""
    log.register_options(conf)
    read(conf, args, prog, register, options, description=description)
    log.setup(conf, "acstor")
    log_format.install()
    warn_of_unknown(conf, options)


def warn_of_unknown(conf: cfg.ConfigOpts, options: Options) -> None:
    """Log unknown options in acstor's sections of the files."""
    for stray in unknown(conf, options):
        LOG.warning("%s", stray)


def unknown(conf: cfg.ConfigOpts, options: Options) -> list[unknown_options.UnknownOption]:
    """Return unknown options in acstor's sections of files; ``options``: all, registered or not."""
    known = _known(conf, options)
    found: list[unknown_options.UnknownOption] = []
    for file in files(conf):
        sections: dict[str, dict[str, object]] = {}
        with contextlib.suppress(OSError, iniparser.ParseError):  # changed since it was read
            cfg.ConfigParser(str(file), sections).parse()
        names = {section: set(members) for section, members in sections.items()}
        found += unknown_options.find_unknown(str(file), names, known)
    return found


def _known(conf: cfg.ConfigOpts, options: Options) -> dict[str, set[str]]:
    known: dict[str, set[str]] = {}
    for group, members in options:
        names = known.setdefault(group.name, set())
        if group.name in conf:
            names.update(conf[group.name])
        for option in members:
            names |= {unknown_options.plain(option.name), option.dest}
            for former in option.deprecated_opts:
                former_name = unknown_options.plain(former.name or option.name)
                known.setdefault(former.group or group.name, set()).add(former_name)
    known[unknown_options.DEFAULT] = {name for name in conf if name not in known}
    return known


def files(conf: cfg.ConfigOpts) -> Iterator[pathlib.Path]:
    """Yield the files that ``conf`` has read, in order."""
    yield from map(pathlib.Path, conf.config_file or [])
    for folder in conf.config_dir or []:
        yield from sorted(pathlib.Path(folder).expanduser().glob("*.conf"))


def read(
    conf: cfg.ConfigOpts,
    args: Sequence[str],
    prog: str,
    register: Callable[[cfg.ConfigOpts], None],
    options: Options,
    project: str = "acstor",
    description: str = "",
) -> None:
    """Read the files that the command line ``args`` names into ``conf``.

    :param prog: selects the default files, with ``project``, if ``args`` names none
    :param options: options to validate now, perhaps with some that libraries register later
    :raises cfg.Error: a file is missing or a value is invalid
    """
    register(conf)
    conf(args, project=project, prog=prog, description=description)
    for group, members in options:
        for option in members:
            if option.dest in conf[group.name]:
                try:
                    _ = conf[group.name][option.dest]
                except cfg.ConfigFileValueError as e:
                    raise cfg.ConfigFileValueError(_why_invalid(group, option, e)) from e


def _why_invalid(group: cfg.OptGroup, option: cfg.Opt, error: cfg.ConfigFileValueError) -> str:
    """Return an error with location, reason and an example; no values of secret options."""
    match = _INVALID.fullmatch(str(error))
    file, why = match.groups() if match else ("", str(error))
    if option.secret:
        why = "its value is invalid"
    where = f"{file}: " if file else ""
    default = option.sample_default or option.default
    example = "" if default in (None, "") else f". For example: {option.name} = {default}"
    return f"{where}[{group.name}] {option.name}: {why}{example}"
