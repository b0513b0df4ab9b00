# SPDX-License-Identifier: Apache-2.0
"""``acstor-agent``: the per-host daemon."""

import pathlib
import sys

from oslo_config import cfg

from acstor_agent import conf as agent_conf
from acstor_agent import daemon
from acstor_agent.process import host_secret
from acstor_agent.process import service_manager
from acstor_agent.process import supervisor
from acstor_common import conf as common_conf
from acstor_common import errors


def load_conf(args: list[str]) -> cfg.ConfigOpts:
    """Return the configuration that the command line ``args`` names.

    :raises cfg.Error: there is no such file, or some option's value makes no sense
    """
    conf = cfg.ConfigOpts()
    common_conf.load(conf, args, "acstor-agent", agent_conf.register_opts, agent_conf.list_opts())
    return conf


def main() -> int:
    """Run the agent until SIGTERM or SIGINT; return an exit status."""
    try:
        conf = load_conf(sys.argv[1:])
        return run(conf)
    except (errors.Unusable, cfg.Error) as e:
        print(f"acstor-agent: {e}", file=sys.stderr)
        return 1


def run(conf: cfg.ConfigOpts) -> int:
    """Run the agent with ``conf``.

    :raises errors.Unusable: it cannot start with what it was given
    """
    own = conf.acstor_agent
    folders = {pathlib.Path(folder).resolve() for folder in (own.state_dir, own.cache_dir)}
    supervisor.make_folder(pathlib.Path(conf.acstor.control_socket).parent)
    with supervisor.lock_folders(sorted(folders)):
        secret = host_secret.of(pathlib.Path(own.state_dir))
        return supervisor.Supervisor(
            pathlib.Path(conf.acstor.mount_point),
            lambda inheritance: daemon.work(conf, inheritance, secret),
            service_manager.notify_ready,
            service_manager.DescriptorStore(),
            supervisor.WithGuests(own.stop_with_guests),
        ).run()


if __name__ == "__main__":
    sys.exit(main())
