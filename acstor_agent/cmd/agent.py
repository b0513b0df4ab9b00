# SPDX-License-Identifier: Apache-2.0
"""``acstor-agent``: the per-host daemon."""

import logging
import os
import pathlib
import sys
from typing import NamedTuple

from oslo_config import cfg

from acstor_agent import conf as agent_conf
from acstor_agent import settings
from acstor_agent import worker
from acstor_agent.cloud import membership
from acstor_agent.process import fd_holder
from acstor_agent.process import fd_store
from acstor_agent.process import folders
from acstor_agent.process import host_secret
from acstor_agent.process import service_manager
from acstor_agent.process import supervisor
from acstor_common import errors
from acstor_common.service import conf as common_conf
from acstor_common.service import console_script
from acstor_common.service import signals

LOG = logging.getLogger(__name__)


def load_conf(args: list[str]) -> cfg.ConfigOpts:
    """Return a command line's configuration; raise cfg.Error if a file or value is invalid."""
    conf = cfg.ConfigOpts()
    prog, description = "acstor-agent", "Run the agent of this host."
    common_conf.load(
        conf, args, prog, agent_conf.register_opts, agent_conf.list_opts(), description
    )
    return conf


def main() -> int:
    """Run the agent until SIGTERM or SIGINT; return an exit status."""
    try:
        conf = load_conf(sys.argv[1:])
        return run(conf)
    except (errors.Unusable, cfg.Error) as e:
        print(f"acstor-agent: {console_script.error_text(e)}", file=sys.stderr)
        return 1


def run(conf: cfg.ConfigOpts) -> int:
    """Run the agent, or raise Unusable if an option's value cannot be used."""
    signals.install(conf.mutate_config_files)
    os.umask(0o077)  # only the agent may read its files
    own = conf.acstor_agent
    settings.check(own)
    check_absolute(conf)
    membership.import_optional(conf)
    state_dir = pathlib.Path(own.state_dir).resolve()
    check_mirror_accessible(conf, state_dir)
    with folders.lock_folders([state_dir]):
        secret = host_secret.load(state_dir)
        return supervisor.Supervisor(
            pathlib.Path(conf.acstor.mount_point),
            AgentDaemon(conf, secret),
            find_fd_store(state_dir),
            supervisor.GuestStopPolicy(own.stop_with_guests),
        ).run()


class AgentDaemon(NamedTuple):
    """The agent, as its supervisor runs it; ``secret``: of this host."""

    conf: cfg.ConfigOpts
    secret: bytes

    def run_worker(self, inheritance: supervisor.Inheritance) -> None:
        """See :meth:`supervisor.Daemon.run_worker`."""
        worker.run_worker(self.conf, inheritance, self.secret)

    def notify_ready(self) -> None:
        """See :meth:`supervisor.Daemon.notify_ready`."""
        service_manager.notify_ready()

    def reload(self) -> None:
        """See :meth:`supervisor.Daemon.reload`."""
        signals.reload(self.conf.mutate_config_files)


def find_fd_store(state_dir: pathlib.Path) -> fd_store.FdStore:
    """Return the store of the mount: a live holder, else the service manager's."""
    manager = service_manager.DescriptorStore()
    if not fd_holder.has_socket(state_dir):
        return manager
    if service_manager.is_available() and not fd_holder.is_answering(state_dir):
        LOG.error(
            "%s: no holder answers; the service manager keeps the mount. Remove this socket, and"
            " change to a holder only while no guest uses the mirror",
            state_dir / fd_holder.SOCKET,
        )
        return manager
    return fd_holder.HolderStore(state_dir)


def check_absolute(conf: cfg.ConfigOpts) -> None:
    """Raise Unusable for a relative path: other services have other working folders."""
    named = ("acstor", "mount_point"), ("acstor", "control_socket")
    for group, name in (*named, ("acstor_agent", "state_dir"), ("acstor_agent", "cache_dir")):
        path = conf[group][name]
        if not os.path.isabs(path):
            raise errors.Unusable(f"[{group}] {name}", f"{path!r} is not an absolute path")


def check_mirror_accessible(conf: cfg.ConfigOpts, state_dir: pathlib.Path) -> None:
    """Raise Unusable if guests may not enter a folder of the mirror or the control socket."""
    cache_dir = pathlib.Path(conf.acstor_agent.cache_dir).resolve()
    for option in ("mount_point", "control_socket"):
        given = pathlib.Path(conf.acstor[option])
        path = given.parent.resolve() / given.name  # resolving a mount without a worker would hang
        for name, folder in (("state_dir", state_dir), ("cache_dir", cache_dir)):
            if path.is_relative_to(folder):
                raise errors.Unusable(
                    f"[acstor] {option} {path}",
                    f"it is inside [acstor_agent] {name}, which only the agent may access",
                    f"Set {name} to a separate folder",
                )


if __name__ == "__main__":
    sys.exit(main())
