# SPDX-License-Identifier: Apache-2.0
"""``acstor-prehash``: makes the chunk map of an image file.

Prints results to standard output, all else to standard error. Exit status: 0 success, 1 failure, 2
wrong usage, 130 interrupted.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import pathlib
import re
import sys
from collections.abc import Iterator
from collections.abc import Sequence

import tqdm

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.formats import layout
from acstor_common.image import deduplication
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.service import argument_types
from acstor_common.service import console_script
from acstor_common.service import log_format
from acstor_glance import mapped_file
from acstor_glance.cmd import file_arguments
from acstor_glance.prepare import prehash

DEFAULT_OS_HASH_ALGO = "sha512"
"""Glance's default of ``[DEFAULT] hashing_algorithm``."""

ENDINGS = {one: f".{one.glance_name}" for one in layout.DiskFormat}
"""File name endings by disk format."""

EXIT_FAILED = 1
EXIT_STOPPED = 130
_SIZE = re.compile(r"([0-9]{1,12})(|K|M)(?:iB)?")
_UNITS = {"": 1, "K": geometry.KIB, "M": geometry.MIB}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = make_parser()
    options = parser.parse_args(argv)
    if options.base and not options.scope_key_file:
        parser.error("--base needs --scope-key-file: plain names are the same everywhere")
    try:
        image_id = options.image_id or image_id_of_name(options.image)
    except ValueError as exc:
        parser.error(str(exc))
    level = logging.ERROR if options.quiet else logging.INFO
    logging.basicConfig(level=level, format="%(message)s", stream=sys.stderr)
    log_format.install()
    try:
        summary = run(options, image_id)
    except (errors.AcstorError, ValueError) as exc:
        print(f"acstor-prehash: {console_script.error_text(exc)}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("acstor-prehash: stopped; run again to continue", file=sys.stderr)
        return EXIT_STOPPED
    report(summary, options)
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="acstor-prehash",
        description="Make the chunk map of a raw or qcow2 image: with it hosts check and share its "
        "chunks.",
        epilog="A run that was stopped goes on where it was when it is started again.",
    )
    file_arguments.add_files(parser, "MAP", ".acmap")
    _add_image(parser)
    _add_names(parser)
    parser.add_argument(
        "--workers",
        metavar="N",
        type=argument_types.number_between(1, 1024),
        help=f"threads that hash (default: one a core, at most {prehash.MAX_DEFAULT_WORKERS})",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--quiet", action="store_true", help="print only errors (and JSON)")
    return parser


def _add_image(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--image-id",
        metavar="UUID",
        type=argument_types.argument_type(ids.parse_image_id),
        help="Glance's id of the image; by default taken from a file name <UUID>.raw or "
        "<UUID>.qcow2",
    )
    parser.add_argument(
        "--format",
        choices=[one.glance_name for one in layout.DiskFormat],
        help="disk_format of the image in Glance; by default qcow2 if the file's name ends with "
        ".qcow2, else raw. It is never guessed from the bytes, which are refused if they are not "
        "of this format",
    )
    parser.add_argument(
        "--chunk-size",
        metavar="SIZE",
        type=argument_types.argument_type(parse_chunk_size),
        default=geometry.DEFAULT_CHUNK_BYTES,
        help="a power of two from 16K to 4M (default: 64K)",
    )
    parser.add_argument(
        "--os-hash",
        metavar="ALGO:HEX|compute",
        type=argument_types.argument_type(parse_os_hash),
        default=chunk_map.UNKNOWN_OS_HASH,
        help="os_hash_algo and os_hash_value of the image in Glance, which are compared with the "
        f"image's bytes; 'compute' computes the {DEFAULT_OS_HASH_ALGO}. Either takes longer than "
        "all the rest, which is done meanwhile",
    )


def _add_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scope-key-file",
        metavar="FILE",
        type=pathlib.Path,
        help="file with the key (64 hexadecimal digits) of the scope in which the chunks are "
        "named; without it they are named for everybody",
    )
    parser.add_argument(
        "--base",
        metavar="MAP",
        type=pathlib.Path,
        help="chunk map of the image that this one was made from: what both have at the same "
        "place keeps its name; with --scope-key-file",
    )


def run(options: argparse.Namespace, image_id: ids.ImageId) -> prehash.Summary:
    """Hash the image, with a progress bar."""
    output = options.output or options.image.with_suffix(".acmap")
    is_shown = not options.quiet and sys.stderr.isatty()
    with naming_of(options) as naming, Bar(options.image, is_shown) as bar:
        return prehash.prehash(
            options.image,
            output,
            image_id,
            disk_format=format_of(options),
            chunk_bytes=options.chunk_size,
            os_hash=options.os_hash,
            workers=options.workers,
            progress=bar.update,
            naming=naming,
        )


@contextlib.contextmanager
def naming_of(options: argparse.Namespace) -> Iterator[deduplication.Naming]:
    """Yield the naming of the chunks; raises Unusable or ChunkMapFormatError."""
    if not options.scope_key_file:
        yield deduplication.PLAIN
        return
    key = read_key(options.scope_key_file)
    if not options.base:
        yield deduplication.Naming(key)
        return
    with file_arguments.readable(options.base) as file, mapped_file.map_file(file) as view:
        yield deduplication.Naming(key, chunk_map.ChunkMap.parse(view, str(options.base)))


def read_key(path: pathlib.Path) -> ids.ScopeKey:
    """Return the scope key in a file; raises Unusable if others can read it."""
    with file_arguments.readable(path) as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            raise errors.Unusable(str(path), "others can read this key", "chmod 600")
        text = file.read(200).decode("ascii", "replace").strip()
    if not re.fullmatch("[0-9a-fA-F]{64}", text) or not int(text, 16):
        raise errors.Unusable(str(path), "no key", "openssl rand -hex 32 makes one")
    return ids.ScopeKey(bytes.fromhex(text))


class Bar:
    """Progress bar in bytes; its rate excludes bytes hashed by an earlier run."""

    def __init__(self, image: pathlib.Path, show: bool) -> None:
        self._image, self._show = image, show
        self._bar: tqdm.tqdm | None = None

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, done_bytes: int) -> None:
        """Show that ``done_bytes`` are done."""
        if self._bar is None:
            self._bar = tqdm.tqdm(
                desc=self._image.name,
                total=self._image.stat().st_size,
                initial=done_bytes,
                unit="B",
                unit_scale=True,
                disable=not self._show,
            )
        self._bar.update(done_bytes - self._bar.n)


def report(summary: prehash.Summary, options: argparse.Namespace) -> None:
    """Print the summary as text or JSON."""
    if options.json:
        print(json.dumps(dataclasses.asdict(summary)))
    elif not options.quiet:
        resumed = f" ({summary.resumed_chunks} by an earlier run)" if summary.resumed_chunks else ""
        print(
            f"{summary.map_path}: {summary.chunks} chunks{resumed}, {summary.zero_chunks} of them "
            f"zero, in {summary.seconds_s:.1f} s"
        )


def format_of(options: argparse.Namespace) -> layout.DiskFormat:
    """Return the format of ``--format``, or that of the file's name."""
    is_named_qcow2 = options.image.suffix == ENDINGS[layout.DiskFormat.QCOW2]
    by_name = layout.DiskFormat.QCOW2 if is_named_qcow2 else layout.DiskFormat.RAW
    return layout.DiskFormat[options.format.upper()] if options.format else by_name


def image_id_of_name(image: pathlib.Path) -> ids.ImageId:
    """Return the ID in a file name ``<UUID>.raw`` or ``<UUID>.qcow2``, or ValueError."""
    try:
        if image.suffix in ENDINGS.values():
            return ids.parse_image_id(image.stem)
    except ValueError:
        pass
    raise ValueError(
        f"{image.name} is not named <UUID>.raw or <UUID>.qcow2: give the image's id with --image-id"
    )


def parse_chunk_size(text: str) -> int:
    """Return a chunk size such as ``64K`` in bytes."""
    match = _SIZE.fullmatch(text)
    size = int(match[1]) * _UNITS[match[2]] if match else 0
    if not geometry.is_chunk_size(size):
        raise ValueError(f"not a power of two from 16K to 4M: {text!r}")
    return size


def parse_os_hash(text: str) -> chunk_map.OsHash:
    """Return an image hash from ``ALGO:HEX``; for ``compute`` one without value."""
    if text == "compute":
        return chunk_map.OsHash(DEFAULT_OS_HASH_ALGO, b"")
    algo, _, digits = text.partition(":")
    if algo not in hashlib.algorithms_available:
        raise ValueError(f"not a hash algorithm: {algo!r}")
    try:
        value = bytes.fromhex(digits)
    except ValueError:
        value = b""
    if not value or len(value) != hashlib.new(algo).digest_size:
        raise ValueError(f"not the hexadecimal digits of a {algo}: {digits!r}")
    return chunk_map.OsHash(algo, value)
