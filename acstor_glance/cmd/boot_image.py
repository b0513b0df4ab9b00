# SPDX-License-Identifier: Apache-2.0
"""``acstor-boot-image``: builds, shows and verifies boot images.

Exit status: 0 success, 1 failure or invalid boot image, 2 wrong usage, 130 interrupted.
"""

import argparse
import contextlib
import dataclasses
import json
import pathlib
import re
import sys
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import tqdm

from acstor_common import errors
from acstor_common.formats import boot_frames
from acstor_common.formats import boot_image
from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.service import argument_types
from acstor_glance import mapped_file
from acstor_glance import sandbox
from acstor_glance.boot import boot_builder
from acstor_glance.boot import boot_guest
from acstor_glance.cmd import command_line

DAY_S = 86400
DEFAULTS = boot_guest.GuestLimits()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = make_parser().parse_args(argv)

    def run() -> int:
        _print_result(options.run(options), options.json)
        return 0

    return command_line.run_command(
        "acstor-boot-image", run, "stopped; nothing was written", OSError
    )


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="acstor-boot-image",
        description="Make and check boot images, which hold the data that guests read at boot.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_build(commands.add_parser("build", help="boot an image in a temporary guest"))
    _add_read(commands.add_parser("show", help="print the header of a boot image"), show)
    verify_parser = commands.add_parser("verify", help="check all data of a boot image")
    _add_read(verify_parser, verify)
    verify_parser.add_argument(
        "--map",
        metavar="MAP",
        type=pathlib.Path,
        help="chunk map of the image, to check the chunks against it",
    )
    return parser


def _add_read(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], dict[str, Any]]
) -> None:
    parser.add_argument("path", metavar="FILE", type=pathlib.Path, help="a boot image")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def _add_build(parser: argparse.ArgumentParser) -> None:
    command_line.add_files(parser, "FILE", ".acboot")
    parser.add_argument(
        "--map",
        metavar="MAP",
        type=pathlib.Path,
        help="chunk map of the image (default: IMAGE with the ending .acmap)",
    )
    _add_end(parser)
    _add_guest(parser)
    parser.add_argument(
        "--revision",
        metavar="N",
        type=argument_types.number_between(1, boot_image.MAX_REVISION),
        default=1,
        help="a boot image with a higher revision replaces one with a lower one (default: 1)",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.set_defaults(run=build)


def _add_end(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--marker",
        metavar="REGEX",
        type=argument_types.argument_type(_regex),
        default=boot_builder.DEFAULT_MARKER,
        help="pattern on the serial console that ends the boot (default: %(default)s)",
    )
    end = "time without reads of new data after which the boot counts as complete"
    for option, default_s, text in (
        ("--longest", DEFAULTS.longest_s, "time after which the boot is stopped"),
        ("--idle", DEFAULTS.idle_s, end),
    ):
        parser.add_argument(
            option,
            metavar="SECONDS",
            type=argument_types.number_between(1, DAY_S),
            default=default_s,
            help=f"{text} (default: %(default)g)",
        )


def _add_guest(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory",
        metavar="MIB",
        type=argument_types.number_between(16, 1 << 20, geometry.MIB),
        default=DEFAULTS.memory_bytes,
        help=f"memory of the guest (default: {DEFAULTS.memory_bytes // geometry.MIB})",
    )
    parser.add_argument(
        "--firmware",
        type=boot_guest.Firmware,
        choices=list(boot_guest.Firmware),
        default=boot_guest.Firmware.BIOS,
        help="firmware of the image, hw_firmware_type in Glance (default: %(default)s)",
    )
    parser.add_argument(
        "--sandbox",
        type=sandbox.Sandbox,
        choices=list(sandbox.Sandbox),
        default=sandbox.Sandbox.BUBBLEWRAP,
        help="sandbox that isolates QEMU from this host; none: trust QEMU and the image "
        "(default: %(default)s)",
    )


def build(options: argparse.Namespace) -> dict[str, Any]:
    """Build a boot image, with a progress bar."""
    limits = dataclasses.replace(
        DEFAULTS,
        longest_s=options.longest,
        idle_s=options.idle,
        memory_bytes=options.memory,
    )
    is_shown = not options.quiet and sys.stderr.isatty()
    total_s = round(limits.longest_s)
    with (
        _map_of(options.map or options.image.with_suffix(".acmap")) as image_map,
        tqdm.tqdm(desc=options.image.name, total=total_s, unit="s", disable=not is_shown) as bar,
    ):

        def progress(seconds_s: float, chunks: int) -> None:
            read_mib = chunks * image_map.geometry.chunk_bytes // geometry.MIB
            bar.set_postfix_str(f"{read_mib} MiB read", refresh=False)
            bar.update(round(seconds_s) - bar.n)

        summary = boot_builder.build(
            options.image,
            image_map,
            options.output or options.image.with_suffix(".acboot"),
            limits=limits,
            firmware=options.firmware,
            marker=options.marker,
            revision=options.revision,
            isolation=options.sandbox,
            progress=progress,
        )
    return dataclasses.asdict(summary)


@contextlib.contextmanager
def _map_of(path: pathlib.Path) -> Iterator[chunk_map.ChunkMap]:
    with path.open("rb") as file, mapped_file.map_file(file) as view:
        yield chunk_map.ChunkMap.parse(view, str(path))


def show(options: argparse.Namespace) -> dict[str, Any]:
    """Return the facts in the head of a boot image."""
    with options.path.open("rb") as file:
        header = boot_image.parse_header(file.read(boot_image.HEADER_BYTES), str(options.path))
        file.seek(0)
        head = boot_image.parse_head(file.read(header.head_bytes), str(options.path))
    return _facts(head)


def verify(options: argparse.Namespace) -> dict[str, Any]:
    """Check all data of a boot image, and its chunks against the chunk map if given."""
    what = str(options.path)
    raw = options.path.read_bytes()
    if not options.map:
        head = boot_image.parse_head(raw, what)
        if any(ids.is_keyed(frame.cid) for frame in head.frames):
            why = "the names of its frames depend on the scope key in its chunk map"
            raise errors.Unusable(what, why, "Pass the chunk map with --map")
        head = boot_frames.check_boot_image([raw], what)
    else:
        with _map_of(options.map) as image_map:
            head = boot_frames.check_boot_image([raw], what, image_map.scope_keys)
            boot_builder.check_chunks(raw, head, image_map, what)
    return {**_facts(head), "checked": "chunk map" if options.map else "checksums"}


def _facts(head: boot_image.Head) -> dict[str, Any]:
    of = head.header.binding
    return {
        "image_id": of.image_id,
        "image_bytes": of.cut.size_bytes,
        "chunk_bytes": of.cut.chunk_bytes,
        "os_hash": f"{of.os_hash.algo}:{of.os_hash.value.hex()}" if of.os_hash.algo else None,
        "revision": head.header.revision,
        "chunks": head.header.chunk_count,
        "profiles": head.header.profile_count,
        "frames": head.header.frame_count,
        "raw_bytes": head.raw_bytes,
        "stored_bytes": head.size_bytes,
    }


def _print_result(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name.replace('_', ' '):14} {value if value is not None else 'unknown'}")


def _regex(text: str) -> str:
    try:
        re.compile(text.encode())
    except re.error as exc:
        raise ValueError(f"not a regular expression: {exc}") from exc
    return text


if __name__ == "__main__":
    sys.exit(main())
