# SPDX-License-Identifier: Apache-2.0
"""``acstor-agent-ctl``: control and status of this host's agent, as tables or JSON."""

import argparse
import json
import pathlib
import socket
import sys
import textwrap
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import msgspec
import prettytable
import tqdm
from oslo_config import cfg

from acstor_agent.core.disks import disk_header
from acstor_common import errors
from acstor_common.model import boot_timeline
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.service import argument_types
from acstor_common.service import boot_chart
from acstor_common.service import conf as common_conf
from acstor_common.service import console_script
from acstor_common.util import printable_text
from acstor_common.wire import control_wire

CONNECT_TIMEOUT_S = 10.0
UNIT_BYTES = 1024 * 1024
REMEDY = "Does acstor-agent run on this host (systemctl status acstor-agent), and are you root?"
WIDTH = 72
"""Width of longer texts."""
MAX_BYTES = (1 << 63) - 1

_FillMode = control_wire.FillMode


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

    def command(name: str, text: str, make: Any, show: Any) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="as before the command"
        )
        added.set_defaults(make=make, show=show)
        return added

    command("status", "show the status of the agent", lambda o: control_wire.Status(), _status)
    added = command(
        "timeline",
        "show the timeline of a boot",
        lambda o: control_wire.Timelines(o.id or ""),
        lambda result: _timelines(result["timelines"]),
    )
    added.add_argument(
        "id",
        nargs="?",
        type=argument_types.argument_type(ids.parse_image_id),
        help="id of a server or an image (default: the last boot of any)",
    )
    command("ring", "show the current v-node table", lambda o: control_wire.GetRing(), _ring)
    for name, text, kind in (
        ("ensure", "attach an image now", control_wire.Ensure),
        ("drop", "detach an image that no guest uses", control_wire.Drop),
        ("pre-seed", "fetch all of an image to this host and pin it", control_wire.PreSeed),
        ("unpin", "keep a pre-seeded image only while servers use it", control_wire.Unpin),
        ("pause", "stop filling the cache with an image", _fill_mode(_FillMode.PAUSED)),
        ("resume", "end a hydrate or a pause", _fill_mode(_FillMode.NORMAL)),
    ):
        added = command(name, text, lambda o, kind=kind: kind(o.image_id), _fields)
        _with_image(added)
    added = command(
        "hydrate",
        "cache an image completely, before other images",
        lambda o: control_wire.SetFillMode(o.image_id, _FillMode.URGENT, o.deadline),
        _fields,
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
    added = command(
        "make-disk",
        "make a writable disk that is based on an image",
        lambda o: control_wire.MakeDisk(o.disk_id, o.image_id, o.size),
        _fields,
    )
    _with_disk(added)
    _with_image(added)
    added.add_argument(
        "--size",
        type=argument_types.number_between(1, MAX_BYTES),
        help="size in bytes, at least that of the image (default: that of the image)",
    )
    added = command(
        "flatten",
        "copy all data that a disk still reads from its image into the disk's own file",
        lambda o: control_wire.Flatten(o.disk_id),
        _fields,
    )
    _with_disk(added)
    added = command(
        "drop-disk",
        "delete a disk that is not open, with all data written to it",
        lambda o: control_wire.DropDisk(o.disk_id),
        _fields,
    )
    _with_disk(added)
    added = command(
        "set-ring",
        "use the v-node table in a file if its epoch is higher",
        lambda o: control_wire.SetRing(_table_in(o.file)),
        _fields,
    )
    added.add_argument("file", type=pathlib.Path, help="file with the table, in JSON")
    added = command(
        "set-disk-policy",
        "change the scheduling policy of the agent's disk",
        lambda o: control_wire.SetDiskPolicy(o.policy),
        _fields,
    )
    added.add_argument("policy", help="a value of the option disk_policy")
    return parser


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


def _ask(path: str, request: control_wire.Request, show_progress: bool) -> Any:
    """Send a request and return its result."""
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


def _replies(path: str, request: control_wire.Request) -> Iterator[control_wire.AnyReply]:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
            agent.settimeout(CONNECT_TIMEOUT_S)
            agent.connect(path)
            agent.settimeout(None)
            agent.sendall(control_wire.encode(request))
            with agent.makefile("rb") as lines:
                for line in lines:
                    yield control_wire.decode_reply(line)
    except OSError as e:
        raise errors.AgentUnreachable(path, e.strerror or str(e)) from e


def _table(names: list[str], rows: list[list[Any]]) -> str:
    table = prettytable.PrettyTable(names, align="l")
    for at, name in enumerate(names):
        if all(_is_number(row[at]) for row in rows):
            table.align[name] = "r"
    table.add_rows(rows)
    return str(table)


def _is_number(cell: Any) -> bool:
    """Return whether a cell is a number, or "-" for an unknown one."""
    plain = str(cell).replace(",", "").replace(".", "", 1)
    return plain.isdigit() or plain == "-"


def _fields(result: dict[str, Any]) -> str:
    return _table(["Field", "Value"], [[name, value] for name, value in result.items()])


def _mib(count: int | None) -> str:
    return "-" if count is None else f"{count / UNIT_BYTES:,.1f}"


def _timelines(told: list[dict[str, Any]]) -> str:
    """Return a list of all boots, and the chart of the last one."""
    found = msgspec.convert(told, list[boot_timeline.Timeline])
    if not found:
        return "no boot since the start of the agent"
    rows = [
        [
            _time(one.began_at_s),
            one.instance_id or "-",
            one.image_id,
            f"{one.last_s:.1f}",
            f"{sum(one.waited_s.values()):.1f}",
            _share(boot_timeline.boot_image_share(one.bytes)),
        ]
        for one in found
    ]
    names = ["Began", "Server", "Image", "Last read, s", "Waited, s", "Boot image"]
    return _table(names, rows) + "\n\n" + boot_chart.draw(found[-1])


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _ring(table: dict[str, Any]) -> str:
    rows = [[host["host"], host["address"], host["vnodes"]] for host in table["hosts"]]
    return f"epoch {table['epoch']}\n" + _table(["Host", "Address", "V-nodes"], rows)


def _disk_io(io: dict[str, Any]) -> str:
    seeks, waits = io["seeks"], io["waits"]
    total, idle = sum(seeks.values()), waits["met"] + waits["expired"]
    if not total:
        return str(io["policy"])
    at_zero = f"{100 * seeks['zero'] / total:.0f} % of {total} seeks at zero"
    return f"{io['policy']}, {at_zero}, {waits['met']} of {idle} waits met"


def _trouble(trouble: dict[str, Any] | None) -> str:
    if trouble is None:
        return "ok"
    return f"{trouble['what']} (since {_time(trouble['since_s'])})"


def _waiting(file_id: str, waiting: dict[str, Any]) -> str:
    since, why = _time(waiting["since_s"]), waiting["why"] or "no answer yet"
    return f"{file_id}: {waiting['requests']} requests, since {since}: {why}"


def _time(clock_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(clock_s))


def _identity(identity: dict[str, Any]) -> str:
    end_s, enrolment = identity["certificate_not_after_s"], identity["enrolment"]
    said = [f"certificate until {_time(end_s)}" if end_s else "no certificate"]
    if enrolment and enrolment["error"]:
        said.append(enrolment["error"])
        if enrolment["fingerprint"]:
            said.append(f"KEY is {enrolment['fingerprint']}")
    if enrolment and abs(enrolment["clock_off_s"]) >= 1:
        off_s = enrolment["clock_off_s"]
        said.append(f"the clock was {abs(off_s):.0f} s {'ahead' if off_s > 0 else 'behind'}")
    return "; ".join(said)


def _fill(whole: dict[str, Any] | None) -> str:
    if whole is None:
        return "not used"
    share = f" {100 * whole['cached_share']:.0f} %" if whole["cached_share"] is not None else ""
    left = f", {whole['remaining_s']:.0f} s left" if whole["remaining_s"] is not None else ""
    why = f": {whole['why']}" if whole["why"] else ""
    asked = ", pinned" if whole["is_pinned"] else ""
    due = _due(whole["due_in_s"], whole["is_late"])
    is_whole = whole["state"] == "fully_cached"
    return textwrap.fill(
        f"{whole['state'].replace('_', ' ')}{'' if is_whole else share}{left}{due}{asked}{why}",
        WIDTH // 2,
    )


def _due(due_in_s: float | None, is_late: bool | None) -> str:
    if due_in_s is None:
        return ""
    if due_in_s <= 0:
        return f", was due {-due_in_s:.0f} s ago"
    return f", due in {due_in_s:.0f} s{', will be late' if is_late else ''}"


def _turns(loop: dict[str, Any]) -> str:
    """Describe the duration of event loop iterations; a quantile is a bucket's bound."""
    most_s = min(loop["p99_s"], loop["longest_s"])
    return f"99 % within {1000 * most_s:.1f} ms, the longest {1000 * loop['longest_s']:.1f} ms"


def _status(status: dict[str, Any]) -> str:
    cache, exchange = status["cache"], status["exchange"]
    about = {
        "Host": status["host"],
        "Version": status["version"],
        "Mirror": status["mount_point"],
        "Worker": f"pid {status['worker_pid']}, up {status['uptime_s']:.0f} s",
        "Ring": f"epoch {status['ring']['epoch']}, {status['ring']['hosts']} hosts",
        "Identity": textwrap.fill(_identity(status["identity"]), WIDTH),
        "Faults": "\n".join(
            textwrap.fill(f"{part}: {trouble['why']} (since {_time(trouble['since_s'])})", WIDTH)
            for part, trouble in status["faults"].items()
        )
        or "none",
        "Cache": f"{_mib(cache['stored_bytes'])} of {_mib(cache['limit_bytes'])} MiB, "
        f"{cache['evictions']} evicted, {cache['corrupt_chunks']} corrupt",
        "Cache folder": _trouble(cache["fault"]),
        "Read from the source": f"{_mib(exchange['source_bytes'])} MiB",
        "Sent to peers": f"{_mib(exchange['served_bytes'])} MiB",
        "Failovers": f"{exchange['failovers']}, {exchange['invalid_chunks']} invalid chunks",
        "Refused": f"{status['refused']['gets']} requests of peers, "
        f"{status['refused']['connections']} connections, {status['guests']['refused']} of guests",
        "Waiting": "\n".join(
            textwrap.fill(_waiting(file_id, file["waiting"]), WIDTH)
            for file_id, file in {**status["images"], **status["disks"]}.items()
            if file["waiting"]
        )
        or "none",
        "Lost data": ", ".join(
            name for name, image in status["images"].items() if image["lost_reads"]
        )
        or "none",
        "Guests on dead mounts": textwrap.fill(", ".join(status["guests"]["on_dead_mounts"]), WIDTH)
        or "none",
        "Disk policy": _disk_io(status["disk_io"]),
        "Event loop": _turns(status["event_loop"]),
        "Peers in backoff": ", ".join(
            f"{host} ({left_s:.0f} s left)" for host, left_s in exchange["in_backoff"].items()
        )
        or "none",
        "Nova fallbacks": ", ".join(
            f"{reason} {times}" for reason, times in status["nova"]["fallbacks"].items() if times
        )
        or "none",
    }
    origins = [
        [origin, _mib(status["read"][origin]["bytes"]), _mib(status["fetched"][origin]["bytes"])]
        for origin in status["read"]
    ]
    images = [
        [
            image_id,
            _mib(image["size_bytes"]),
            _mib(image["cached_bytes"]),
            _mib(sum(counts["bytes"] for counts in image["read"].values())),
            image["reads_in_flight"],
            f"{image['latency']['p99_s'] * 1000:.2f}",
            image["failed_reads"],
            _fill(image["fill"]),
        ]
        for image_id, image in status["images"].items()
    ]
    made = [
        [
            disk_id,
            made["image_id"] or "-",
            *(_mib(made[name]) for name in ("size_bytes", "written_bytes", "unsynced_bytes")),
        ]
        for disk_id, made in status["disks"].items()
    ]
    return "\n".join(
        [
            _fields(about),
            _table(["Origin", "Read by guests, MiB", "Fetched, MiB"], origins),
            _table(
                ["Image", "MiB", "Cached", "Read", "In flight", "p99 ms", "Failed", "Fill"], images
            ),
            _table(["Disk", "Image", "MiB", "Written", "Unsynced"], made),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
