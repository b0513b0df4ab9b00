# SPDX-License-Identifier: Apache-2.0
"""The demo's report: tables for the terminal, a JSON file, pictures.

Each table names its unit, and software emulation is mentioned with all times.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import prettytable

from tests.lab import boot_methods
from tests.lab import demo_images
from tests.lab import demo_picture
from tests.lab import demo_remap

MB = 1_000_000
NONE: Mapping[str, str] = MappingProxyType({})
EMULATION = {
    "tcg": "software emulation (TCG): the guests' boots are bound by the processor",
    "kvm": "hardware virtualization (KVM)",
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """The circumstances of the measurements."""

    hosts: int
    link_mbit: float
    accelerator: str
    cpus: int
    image: dict[str, object]
    qcow2_bytes: int

    @property
    def words(self) -> str:
        """The circumstances in one line."""
        return (
            f"{self.hosts} hosts and image server with {self.link_mbit:g} Mbit/s each, "
            f"{self.cpus} processors, {EMULATION[self.accelerator]}"
        )


def per_host(results: Sequence[boot_methods.BootResult]) -> str:
    """Return a table: seconds to the login prompt, one row a host, one column a way."""
    table = prettytable.PrettyTable(["seconds to login", *(result.label for result in results)])
    table.align = "r"
    for row in zip(*(result.hosts for result in results), strict=True):
        table.add_row([row[0].host, *(f"{host.login_s:.1f}" for host in row)])
    slowest = (max(host.login_s for host in result.hosts) for result in results)
    table.add_row(["all", *(f"{seconds:.1f}" for seconds in slowest)])
    return table.get_string()


def totals(results: Sequence[boot_methods.BootResult]) -> str:
    """Return a table: bytes sent by the image server, one row a way.

    *raw MB* is the size of the sent disk data after decompression.
    """
    columns = ["out of the image server", "sent MB", "unique MB", "sent / unique", "raw MB"]
    table = prettytable.PrettyTable([*columns, "sent / raw", "link MB", "guests read MB"])
    table.align = "r"
    for result in results:
        read = sum(host.guest_read_bytes for host in result.hosts)
        counts = (result.server_bytes, result.unique_bytes, result.raw_bytes)
        sent, unique, raw = (f"{count / MB:.1f}" for count in counts)
        link, asked = f"{result.server_link_bytes / MB:.1f}", f"{read / MB:.1f}"
        ratios = f"{result.amplification:.2f}", f"{result.of_raw:.2f}"
        table.add_row([result.label, sent, unique, ratios[0], raw, ratios[1], link, asked])
    return table.get_string()


def prepared(built: demo_images.BootImage) -> str:
    """Return a line: the boot image built before the boots."""
    return (
        f"boot image: {built.chunks} chunks, {built.raw_bytes / MB:.1f} MB in "
        f"{built.stored_bytes / MB:.1f} MB, built once in {built.seconds:.1f} s"
    )


def origins(result: boot_methods.BootResult) -> str:
    """Return a table: origins of the guests' bytes, one row a host."""
    names = list(result.hosts[0].read_origins)
    table = prettytable.PrettyTable(["MB read by origin", *names])
    table.align = "r"
    for host in result.hosts:
        table.add_row([host.host, *(f"{host.read_origins[name] / MB:.1f}" for name in names)])
    return table.get_string()


def exchange(result: boot_methods.BootResult) -> str:
    """Return a table: chunk bytes by receiver (rows) and sender (columns)."""
    senders = [boot_methods.SOURCE, *result.exchange]
    table = prettytable.PrettyTable(["MB of chunks got by", *(f"from {name}" for name in senders)])
    table.align = "r"
    for name, got in result.exchange.items():
        cells = (f"{got.get(sender, 0) / MB:.1f}" if sender != name else "" for sender in senders)
        table.add_row([name, *cells])
    return table.get_string()


def remap(result: demo_remap.RemapResult) -> str:
    """Return a table: bytes sent and read times, before and after the remap."""
    columns = [f"of all chunks given, by {result.busy}", "reads elsewhere took", "reads"]
    table = prettytable.PrettyTable(["remap", "s", *columns])
    table.align = "r"
    for phase in result.phases:
        share, took = f"{phase.given_share:.0%}", f"{phase.read_ms:.0f} ms"
        table.add_row([phase.name, f"{phase.seconds:.0f}", share, took, phase.reads])
    before, after = result.vnodes_before[result.busy], result.vnodes_after[result.busy]
    whole = sum(result.vnodes_before.values())
    words = (
        f"{result.busy} sends {result.traffic_mbit:.0f} Mbit/s: after "
        f"{result.remap_s - result.traffic_s:.1f} s {result.moved} of {whole} v-nodes move; "
        f"it keeps {after} of {before}"
    )
    return f"{words}\n{table.get_string()}"


def text(
    setting: Setting, results: Sequence[boot_methods.BootResult], failed: Mapping[str, str] = NONE
) -> str:
    """Return the whole report for a terminal.

    :param failed: reasons of failed ways, by label
    """
    tables = [per_host(results), totals(results)]
    tables += [f"{label}: failed: {why}" for label, why in failed.items()]
    for result in results:
        tables += [prepared(result.boot_image)] if result.boot_image else []
        tables += [origins(result)] if result.hosts[0].read_origins else []
        tables += [exchange(result)] if result.exchange else []
        tables += [remap(result.remap)] if result.remap else []
    return "\n".join([setting.words, *tables])


def as_json(
    setting: Setting, results: Sequence[boot_methods.BootResult], failed: Mapping[str, str] = NONE
) -> dict[str, Any]:
    """Return all figures, and reasons of failed ways, in JSON types."""
    plain = [
        {
            **dataclasses.asdict(result),
            "sent_per_unique_byte": round(result.amplification, 4),
            "sent_per_raw_byte": round(result.of_raw, 4),
        }
        for result in results
    ]
    return {
        "version": 1,
        "setting": dataclasses.asdict(setting),
        "ways": plain,
        "failed": dict(failed),
    }


def save(
    setting: Setting,
    results: Sequence[boot_methods.BootResult],
    folder: pathlib.Path,
    failed: Mapping[str, str] = NONE,
) -> list[pathlib.Path]:
    """Write ``demo.json``, ``demo.png`` and ``remap.png``; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    figures, picture = folder / "demo.json", folder / "demo.png"
    figures.write_text(json.dumps(as_json(setting, results, failed), indent=1) + "\n")
    demo_picture.draw(setting.words, results, picture)
    if result := results[-1].remap:
        demo_picture.draw_remap(setting.words, result, folder / "remap.png")
        return [figures, picture, folder / "remap.png"]
    return [figures, picture]
