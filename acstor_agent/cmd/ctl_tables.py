# SPDX-License-Identifier: Apache-2.0
"""Tables that ``acstor-agent-ctl`` prints."""

import textwrap
import time
from collections.abc import Iterable
from typing import Any

import msgspec
import prettytable

from acstor_common.model import boot_timeline
from acstor_common.service import boot_chart

UNIT_BYTES = 1024 * 1024
WIDTH = 72
"""Width of longer texts."""


def show_table(names: list[str], rows: list[list[Any]]) -> str:
    """Return a table, with columns of numbers aligned right."""
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


def show_fields(result: dict[str, Any]) -> str:
    """Return a table of names and values."""
    return show_table(["Field", "Value"], [[name, value] for name, value in result.items()])


def _mib(count: int | None) -> str:
    return "-" if count is None else f"{count / UNIT_BYTES:,.1f}"


def show_timelines(told: list[dict[str, Any]]) -> str:
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
    return show_table(names, rows) + "\n\n" + boot_chart.draw(found[-1])


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def show_ring(table: dict[str, Any]) -> str:
    """Return the epoch and a table of the hosts."""
    rows = [[host["host"], host["address"], host["vnodes"]] for host in table["hosts"]]
    return f"epoch {table['epoch']}\n" + show_table(["Host", "Address", "V-nodes"], rows)


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


def show_status(status: dict[str, Any]) -> str:
    """Return tables of the agent, of reads by origin, of images and of disks."""
    about = {
        **_host_fields(status),
        **_traffic_fields(status),
        **_guest_fields(status),
        "Disk policy": _disk_io(status["disk_io"]),
        "Event loop": _turns(status["event_loop"]),
        "Peers in backoff": _listed(
            f"{host} ({left_s:.0f} s left)"
            for host, left_s in status["exchange"]["in_backoff"].items()
        ),
        "Nova fallbacks": _listed(
            f"{reason} {times}" for reason, times in status["nova"]["fallbacks"].items() if times
        ),
    }
    origins = [
        [origin, _mib(status["read"][origin]["bytes"]), _mib(status["fetched"][origin]["bytes"])]
        for origin in status["read"]
    ]
    return "\n".join(
        [
            show_fields(about),
            show_table(["Origin", "Read by guests, MiB", "Fetched, MiB"], origins),
            _images(status["images"]),
            _disks(status["disks"]),
        ]
    )


def _host_fields(status: dict[str, Any]) -> dict[str, str]:
    return {
        "Host": status["host"],
        "Version": status["version"],
        "Mirror": status["mount_point"],
        "Worker": f"pid {status['worker_pid']}, up {status['uptime_s']:.0f} s",
        "Ring": f"epoch {status['ring']['epoch']}, {status['ring']['hosts']} hosts",
        "Identity": textwrap.fill(_identity(status["identity"]), WIDTH),
        "Faults": _paragraphs(
            f"{part}: {trouble['why']} (since {_time(trouble['since_s'])})"
            for part, trouble in status["faults"].items()
        ),
    }


def _traffic_fields(status: dict[str, Any]) -> dict[str, str]:
    cache, exchange, refused = status["cache"], status["exchange"], status["refused"]
    return {
        "Cache": f"{_mib(cache['stored_bytes'])} of {_mib(cache['limit_bytes'])} MiB, "
        f"{cache['evictions']} evicted, {cache['corrupt_chunks']} corrupt",
        "Cache folder": _trouble(cache["fault"]),
        "Read from the source": f"{_mib(exchange['source_bytes'])} MiB",
        "Sent to peers": f"{_mib(exchange['served_bytes'])} MiB",
        "Failovers": f"{exchange['failovers']}, {exchange['invalid_chunks']} invalid chunks",
        "Refused": f"{refused['gets']} requests of peers, "
        f"{refused['connections']} connections, {status['guests']['refused']} of guests",
    }


def _guest_fields(status: dict[str, Any]) -> dict[str, str]:
    images = status["images"]
    return {
        "Waiting": _paragraphs(
            _waiting(file_id, file["waiting"])
            for file_id, file in {**images, **status["disks"]}.items()
            if file["waiting"]
        ),
        "Lost data": _listed(name for name, image in images.items() if image["lost_reads"]),
        "Guests on dead mounts": textwrap.fill(_listed(status["guests"]["on_dead_mounts"]), WIDTH),
    }


def _paragraphs(texts: Iterable[str]) -> str:
    return "\n".join(textwrap.fill(text, WIDTH) for text in texts) or "none"


def _listed(items: Iterable[str]) -> str:
    return ", ".join(items) or "none"


def _images(images: dict[str, Any]) -> str:
    names = ["Image", "MiB", "Cached", "Read", "In flight", "p99 ms", "Failed", "Fill"]
    rows = [
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
        for image_id, image in images.items()
    ]
    return show_table(names, rows)


def _disks(disks: dict[str, Any]) -> str:
    sizes = ("size_bytes", "written_bytes", "unsynced_bytes")
    rows = [
        [disk_id, disk["image_id"] or "-", *(_mib(disk[name]) for name in sizes)]
        for disk_id, disk in disks.items()
    ]
    return show_table(["Disk", "Image", "MiB", "Written", "Unsynced"], rows)
