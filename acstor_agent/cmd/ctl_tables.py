# SPDX-License-Identifier: Apache-2.0
"""Formats replies of the agent as tables for ``acstor-agent-ctl``."""

import textwrap
import time
from collections.abc import Iterable
from typing import Any

import msgspec
import prettytable

from acstor_common.model import boot_timeline
from acstor_common.service import boot_chart

MIB = 1024 * 1024
WIDTH = 72  # width of longer texts


def format_table(names: list[str], rows: list[list[Any]]) -> str:
    """Return a table; columns of numbers are aligned right."""
    table = prettytable.PrettyTable(names, align="l")
    for at, name in enumerate(names):
        if all(_is_number(row[at]) for row in rows):
            table.align[name] = "r"
    table.add_rows(rows)
    return str(table)


def _is_number(cell: Any) -> bool:
    plain = str(cell).replace(",", "").replace(".", "", 1)
    return plain.isdigit() or plain == "-"


def format_fields(result: dict[str, Any]) -> str:
    """Return a table of names and values."""
    return format_table(["Field", "Value"], [[name, value] for name, value in result.items()])


def _mib(count: int | None) -> str:
    return "-" if count is None else f"{count / MIB:,.1f}"


def format_timelines(boots: list[dict[str, Any]]) -> str:
    """Return a table of all boots, and the chart of the last one."""
    timelines = msgspec.convert(boots, list[boot_timeline.Timeline])
    if not timelines:
        return "no boot since the start of the agent"
    rows = [
        [
            _time(timeline.began_at_s),
            timeline.instance_id or "-",
            timeline.image_id,
            f"{timeline.last_s:.1f}",
            f"{sum(timeline.waited_s.values()):.1f}",
            _share(boot_timeline.boot_image_share(timeline.bytes)),
        ]
        for timeline in timelines
    ]
    names = ["Began", "Server", "Image", "Last read, s", "Waited, s", "Boot image"]
    return format_table(names, rows) + "\n\n" + boot_chart.draw(timelines[-1])


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def format_ring(table: dict[str, Any]) -> str:
    """Return the epoch and a table of the hosts."""
    rows = [[host["host"], host["address"], host["vnodes"]] for host in table["hosts"]]
    return f"epoch {table['epoch']}\n" + format_table(["Host", "Address", "V-nodes"], rows)


def _disk_io(io: dict[str, Any]) -> str:
    seeks, waits = io["seeks"], io["waits"]
    total, idle = sum(seeks.values()), waits["met"] + waits["expired"]
    if not total:
        return str(io["policy"])
    at_zero = f"{100 * seeks['zero'] / total:.0f} % of {total} seeks at zero"
    return f"{io['policy']}, {at_zero}, {waits['met']} of {idle} waits met"


def _fault(fault: dict[str, Any] | None) -> str:
    if fault is None:
        return "ok"
    return f"{fault['what']} (since {_time(fault['since_s'])})"


def _waiting(file_id: str, waiting: dict[str, Any]) -> str:
    since, why = _time(waiting["since_s"]), waiting["why"] or "no answer yet"
    return f"{file_id}: {waiting['requests']} requests, since {since}: {why}"


def _time(clock_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(clock_s))


def _identity(identity: dict[str, Any]) -> str:
    end_s, enrolment = identity["certificate_not_after_s"], identity["enrolment"]
    parts = [f"certificate until {_time(end_s)}" if end_s else "no certificate"]
    if enrolment and enrolment["error"]:
        parts.append(enrolment["error"])
        if enrolment["fingerprint"]:
            parts.append(f"KEY is {enrolment['fingerprint']}")
    if enrolment and abs(enrolment["clock_offset_s"]) >= 1:
        off_s = enrolment["clock_offset_s"]
        parts.append(f"the clock was {abs(off_s):.0f} s {'ahead' if off_s > 0 else 'behind'}")
    return "; ".join(parts)


def _fill(fill: dict[str, Any] | None) -> str:
    if fill is None:
        return "not used"
    share = f" {100 * fill['cached_share']:.0f} %" if fill["cached_share"] is not None else ""
    left = f", {fill['remaining_s']:.0f} s left" if fill["remaining_s"] is not None else ""
    why = f": {fill['why']}" if fill["why"] else ""
    pinned = ", pinned" if fill["is_pinned"] else ""
    due = _due(fill["due_in_s"], fill["is_late"])
    is_complete = fill["state"] == "fully_cached"
    return textwrap.fill(
        f"{fill['state'].replace('_', ' ')}{'' if is_complete else share}{left}{due}{pinned}{why}",
        WIDTH // 2,
    )


def _due(due_in_s: float | None, is_late: bool | None) -> str:
    if due_in_s is None:
        return ""
    if due_in_s <= 0:
        return f", was due {-due_in_s:.0f} s ago"
    return f", due in {due_in_s:.0f} s{', will be late' if is_late else ''}"


def _loop_lag(loop: dict[str, Any]) -> str:
    """Describe the lag of the event loop; a quantile is a bucket's upper bound."""
    most_s = min(loop["p99_s"], loop["longest_s"])
    return f"99 % within {1000 * most_s:.1f} ms, the longest {1000 * loop['longest_s']:.1f} ms"


def format_status(status: dict[str, Any]) -> str:
    """Return four tables: the agent, reads by origin, images, disks."""
    about = {
        **_host_fields(status),
        **_traffic_fields(status),
        **_guest_fields(status),
        "Disk policy": _disk_io(status["disk_io"]),
        "Event loop": _loop_lag(status["event_loop"]),
        "Peers in backoff": _comma_list(
            f"{host} ({left_s:.0f} s left)"
            for host, left_s in status["exchange"]["in_backoff"].items()
        ),
        "Nova fallbacks": _comma_list(
            f"{reason} {times}" for reason, times in status["nova"]["fallbacks"].items() if times
        ),
    }
    origins = [
        [origin, _mib(status["read"][origin]["bytes"]), _mib(status["fetched"][origin]["bytes"])]
        for origin in status["read"]
    ]
    return "\n".join(
        [
            format_fields(about),
            format_table(["Origin", "Read by guests, MiB", "Fetched, MiB"], origins),
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
            f"{part}: {fault['why']} (since {_time(fault['since_s'])})"
            for part, fault in status["faults"].items()
        ),
    }


def _traffic_fields(status: dict[str, Any]) -> dict[str, str]:
    cache, exchange, refused = status["cache"], status["exchange"], status["refused"]
    return {
        "Cache": f"{_mib(cache['stored_bytes'])} of {_mib(cache['limit_bytes'])} MiB, "
        f"{cache['evictions']} evicted, {cache['corrupt_chunks']} corrupt",
        "Cache folder": _fault(cache["fault"]),
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
        "Lost data": _comma_list(name for name, image in images.items() if image["lost_reads"]),
        "Guests on dead mounts": textwrap.fill(
            _comma_list(status["guests"]["on_dead_mounts"]), WIDTH
        ),
    }


def _paragraphs(texts: Iterable[str]) -> str:
    return "\n".join(textwrap.fill(text, WIDTH) for text in texts) or "none"


def _comma_list(items: Iterable[str]) -> str:
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
    return format_table(names, rows)


def _disks(disks: dict[str, Any]) -> str:
    sizes = ("size_bytes", "written_bytes", "unsynced_bytes")
    rows = [
        [disk_id, disk["image_id"] or "-", *(_mib(disk[name]) for name in sizes)]
        for disk_id, disk in disks.items()
    ]
    return format_table(["Disk", "Image", "MiB", "Written", "Unsynced"], rows)
