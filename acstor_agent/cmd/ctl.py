# SPDX-License-Identifier: Apache-2.0
"""``acstor-agent-ctl``: control and status of this host's agent, as tables or JSON."""

import argparse
import functools
import json
import pathlib
import socket
import sys
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import msgspec
import tqdm
from oslo_config import cfg

from acstor_agent.cmd import ctl_tables
from acstor_agent.core.disks import disk_header
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.service import argument_types
from acstor_common.service import conf as common_conf
from acstor_common.service import console_script
from acstor_common.util import printable_text
from acstor_common.wire import control_wire

CONNECT_TIMEOUT_S = 10.0
SILENCE_S = 120.0  # after which the agent hangs: it reports progress, and fetches a map in 30 s
REMEDY = "Does acstor-agent run on this host (systemctl status acstor-agent), and are you root?"
MAX_BYTES = (1 << 63) - 1

_FillMode = control_wire.FillMode
_Add = Callable[..., argparse.ArgumentParser]


def main() -> int:
    """Run one request; return 0 if it succeeded, 1 if it failed, 2 for wrong usage."""
    options = _parser().parse_args()
    try:
        path = options.socket or _configured_socket(options.config_file)
        result = _ask(path, options.make(options), show_progress=not options.json)
    except errors.AgentUnreachable as e:
        print(f"acstor-agent-ctl: {console_script.error_text(e)}. {REMEDY}", file=sys.stderr)
        return 1
    except (errors.AcstorError, cfg.Error, OSError) as e:
        print(f"acstor-agent-ctl: {console_script.error_text(e)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("acstor-agent-ctl: stopped; fetched data stays in the cache", file=sys.stderr)
        return 1
    print(json.dumps(result, indent=2) if options.json else _shown(options, result))
    return 0


def _shown(options: argparse.Namespace, result: Any) -> str:
    return str(options.show(printable_text.data(result)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="acstor-agent-ctl", description=argument_types.help_text(__doc__)
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--config-file", help="the agent's configuration (as acstor-agent finds it)")
    where.add_argument("--socket", help="the agent's control socket (as configured)")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add = functools.partial(_add_command, commands)
    _add_queries(add)
    _add_image_commands(add)
    _add_disk_commands(add)
    _add_settings(add)
    return parser


def _add_command(
    commands: Any,
    name: str,
    text: str,
    make: Callable[[argparse.Namespace], control_wire.ControlRequest],
    show: Callable[[Any], str] = ctl_tables.format_fields,
) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    added.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="as before the command"
    )
    added.set_defaults(make=make, show=show)
    return added


def _add_queries(add: _Add) -> None:
    add(
        "status",
        "show the status of the agent",
        lambda o: control_wire.Status(),
        ctl_tables.format_status,
    )
    add(
        "timeline",
        "show the timeline of a boot",
        lambda o: control_wire.Timelines(o.id or ""),
        lambda result: ctl_tables.format_timelines(result["timelines"]),
    ).add_argument(
        "id",
        nargs="?",
        type=argument_types.argument_type(ids.parse_image_id),
        help="id of a server or an image (default: the last boot of any)",
    )
    add(
        "ring",
        "show the current v-node table",
        lambda o: control_wire.GetRing(),
        ctl_tables.format_ring,
    )


def _add_image_commands(add: _Add) -> None:
    for name, text, kind in (
        ("attach", "attach an image now", control_wire.AttachImage),
        ("detach", "detach an image that no guest uses", control_wire.DetachImage),
        ("pre-seed", "fetch all of an image to this host and pin it", control_wire.PreSeed),
        ("unpin", "keep a pre-seeded image only while servers use it", control_wire.Unpin),
        ("pause", "stop filling the cache with an image", _fill_mode(_FillMode.PAUSED)),
        ("resume", "end a hydrate or a pause", _fill_mode(_FillMode.NORMAL)),
    ):
        _with_image(add(name, text, lambda o, kind=kind: kind(o.image_id)))
    added = add(
        "hydrate",
        "cache an image completely, before other images",
        lambda o: control_wire.SetFillMode(o.image_id, _FillMode.URGENT, o.deadline),
    )
    _with_image(added)
    added.add_argument(
        "--deadline",
        type=argument_types.duration(control_wire.MAX_DEADLINE_S),
        default=0.0,
        metavar="DURATION",
        help="time until the image must be fully cached, as 90s, 15m or 2h (default: as soon as "
        "possible)",
    )


def _add_disk_commands(add: _Add) -> None:
    added = add(
        "make-disk",
        "make a writable disk that is based on an image",
        lambda o: control_wire.MakeDisk(o.disk_id, o.image_id, o.size),
    )
    _with_disk(added)
    _with_image(added)
    added.add_argument(
        "--size",
        type=argument_types.number_between(1, MAX_BYTES),
        help="size in bytes, at least that of the image (default: that of the image)",
    )
    added = add(
        "flatten",
        "copy all data that a disk still reads from its image into the disk's own file",
        lambda o: control_wire.Flatten(o.disk_id),
    )
    _with_disk(added)
    added = add(
        "drop-disk",
        "delete a disk that is not open, with all data written to it",
        lambda o: control_wire.DropDisk(o.disk_id),
    )
    _with_disk(added)


def _add_settings(add: _Add) -> None:
    add(
        "set-ring",
        "use the v-node table in a file if its epoch is higher",
        lambda o: control_wire.SetRing(_table_in(o.file)),
    ).add_argument("file", type=pathlib.Path, help="file with the table, in JSON")
    add(
        "set-disk-policy",
        "change the scheduling policy of the agent's disk",
        lambda o: control_wire.SetDiskPolicy(o.policy),
    ).add_argument("policy", help="a value of the option disk_policy")


def _with_image(parser: argparse.ArgumentParser) -> None:
    parse = argument_types.argument_type(ids.parse_image_id)
    parser.add_argument("image_id", type=parse, help="id of the image, a UUID")


def _with_disk(parser: argparse.ArgumentParser) -> None:
    parse = argument_types.argument_type(disk_header.parse_disk_id)
    parser.add_argument("disk_id", type=parse, help="id of the disk, a UUID")


def _fill_mode(mode: control_wire.FillMode) -> Callable[[str], control_wire.SetFillMode]:
    return lambda image_id: control_wire.SetFillMode(image_id, mode)


def _table_in(file: pathlib.Path) -> msgspec.Raw:
    """Return the v-node table in a file as one line, as requests are lines."""
    table = file.read_bytes()
    hash_ring.decode(table, str(file))
    return msgspec.Raw(msgspec.json.format(table, indent=-1))


def _configured_socket(config_file: str | None) -> str:
    conf = cfg.ConfigOpts()
    common_conf.register_opts(conf)
    conf(["--config-file", config_file] if config_file else [], "acstor", "acstor-agent")
    path: str = conf.acstor.control_socket
    return path


def _ask(path: str, request: control_wire.ControlRequest, show_progress: bool) -> Any:
    with tqdm.tqdm(
        unit="B", unit_scale=True, unit_divisor=1024, disable=None if show_progress else True
    ) as bar:
        for reply in _replies(path, request):
            match reply:
                case control_wire.Progress(done_bytes, total_bytes):
                    bar.total = total_bytes
                    bar.update(done_bytes - bar.n)
                case control_wire.Failed(_, error):
                    raise errors.Unusable("the agent refused", error)
                case control_wire.Done(result):
                    bar.update((bar.total or 0) - bar.n)
                    return result
    raise errors.AgentUnreachable(path, "it closed the connection before it answered")


def _replies(path: str, request: control_wire.ControlRequest) -> Iterator[control_wire.AnyReply]:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
            agent.settimeout(CONNECT_TIMEOUT_S)
            agent.connect(path)
            agent.settimeout(SILENCE_S)
            agent.sendall(control_wire.encode(request))
            with agent.makefile("rb") as lines:
                for line in lines:
                    yield control_wire.decode_reply(line)
    except TimeoutError as e:
        raise errors.AgentUnreachable(path, f"no answer within {SILENCE_S:g} s") from e
    except OSError as e:
        raise errors.AgentUnreachable(path, e.strerror or str(e)) from e


if __name__ == "__main__":
    sys.exit(main())
