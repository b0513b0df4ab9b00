# SPDX-License-Identifier: Apache-2.0
"""``acstor-prehash``: makes the chunk map of an image file.

Exit status: 0 success, 1 failure, 2 wrong usage, 130 interrupted.
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

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.formats import layout
from acstor_common.image import deduplication
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.service import argument_types
from acstor_common.service import log_format
from acstor_glance import mapped_file
from acstor_glance.cmd import command_line
from acstor_glance.prepare import prehash

DEFAULT_OS_HASH_ALGO = "sha512"

ENDINGS = {disk_format: f".{disk_format.glance_name}" for disk_format in layout.DiskFormat}

_SIZE = re.compile(r"([0-9]{1,12})(|K|M)(?:iB)?")
_UNITS = {"": 1, "K": geometry.KIB, "M": geometry.MIB}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = make_parser()
    options = parser.parse_args(argv)
    if options.base and not options.scope_key_file:
        parser.error("--base needs --scope-key-file: names without a scope do not depend on it")
    try:
        image_id = options.image_id or _image_id_of_name(options.image)
    except ValueError as exc:
        parser.error(str(exc))
    level = logging.ERROR if options.quiet else logging.INFO
    logging.basicConfig(level=level, format="%(message)s", stream=sys.stderr)
    log_format.install()

    def run() -> int:
        _print_summary(_hash_image(options, image_id), options)
        return 0

    return command_line.run_command(
        "acstor-prehash", run, "stopped; run again to continue", ValueError
    )


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="acstor-prehash",
        description="Make the chunk map of a raw or qcow2 image, by which hosts verify and share "
        "its chunks.",
        epilog="A stopped run continues where it was when it is started again.",
    )
    command_line.add_files(parser, "MAP", ".acmap")
    _add_image(parser)
    _add_names(parser)
    parser.add_argument(
        "--workers",
        metavar="N",
        type=argument_types.number_between(1, 1024),
        help=f"threads that hash (default: one per core, at most {prehash.MAX_DEFAULT_WORKERS})",
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
        choices=[disk_format.glance_name for disk_format in layout.DiskFormat],
        help="disk_format of the image in Glance; by default qcow2 if the file's name ends with "
        ".qcow2, else raw. The format is never guessed from the data; data of another format is "
        "refused",
    )
    parser.add_argument(
        "--chunk-size",
        metavar="SIZE",
        type=argument_types.argument_type(_parse_chunk_size),
        default=geometry.DEFAULT_CHUNK_BYTES,
        help="a power of two from 16K to 4M (default: 64K)",
    )
    parser.add_argument(
        "--os-hash",
        metavar="ALGO:HEX|compute",
        type=argument_types.argument_type(_parse_os_hash),
        default=chunk_map.UNKNOWN_OS_HASH,
        help="os_hash_algo and os_hash_value of the image in Glance, which are compared with the "
        f"image's data; 'compute' computes the {DEFAULT_OS_HASH_ALGO}. Either takes longer than "
        "the rest of the work, which runs in parallel",
    )


def _add_names(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scope-key-file",
        metavar="FILE",
        type=pathlib.Path,
        help="file with the key (64 hexadecimal digits) of the scope of the chunks' names; "
        "without it the names are the same in all clouds",
    )
    parser.add_argument(
        "--base",
        metavar="MAP",
        type=pathlib.Path,
        help="chunk map of the image that this one was made from: equal chunks at the same "
        "offset keep their names; with --scope-key-file",
    )


def _hash_image(options: argparse.Namespace, image_id: ids.ImageId) -> prehash.Summary:
    image: pathlib.Path = options.image
    is_shown = not options.quiet and sys.stderr.isatty()
    size_bytes = image.stat().st_size if is_shown and image.exists() else 0
    with (
        _open_naming(options) as naming,
        command_line.byte_bar(image.name, size_bytes, is_shown=is_shown) as progress,
    ):
        return prehash.prehash(
            image,
            options.output or image.with_suffix(".acmap"),
            image_id,
            disk_format=_format_of(options),
            chunk_bytes=options.chunk_size,
            os_hash=options.os_hash,
            workers=options.workers,
            progress=progress,
            naming=naming,
        )


@contextlib.contextmanager
def _open_naming(options: argparse.Namespace) -> Iterator[deduplication.Naming]:
    if not options.scope_key_file:
        yield deduplication.PLAIN
        return
    key = _read_key(options.scope_key_file)
    if not options.base:
        yield deduplication.Naming(key)
        return
    with command_line.open_readable(options.base) as file, mapped_file.map_file(file) as view:
        yield deduplication.Naming(key, chunk_map.ChunkMap.parse(view, str(options.base)))


def _read_key(path: pathlib.Path) -> ids.ScopeKey:
    with command_line.open_readable(path) as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            raise errors.Unusable(str(path), "others can read this key", "chmod 600")
        text = file.read(200).decode("ascii", "replace").strip()
    if not re.fullmatch("[0-9a-fA-F]{64}", text) or not int(text, 16):
        raise errors.Unusable(
            str(path), "it holds no valid key", "openssl rand -hex 32 generates one"
        )
    return ids.ScopeKey(bytes.fromhex(text))


def _print_summary(summary: prehash.Summary, options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps(dataclasses.asdict(summary)))
    elif not options.quiet:
        resumed = f" ({summary.resumed_chunks} by an earlier run)" if summary.resumed_chunks else ""
        print(
            f"{summary.map_path}: {summary.chunks} chunks{resumed}, {summary.zero_chunks} of them "
            f"zero, in {summary.seconds_s:.1f} s"
        )


def _format_of(options: argparse.Namespace) -> layout.DiskFormat:
    is_named_qcow2 = options.image.suffix == ENDINGS[layout.DiskFormat.QCOW2]
    by_name = layout.DiskFormat.QCOW2 if is_named_qcow2 else layout.DiskFormat.RAW
    return layout.DiskFormat[options.format.upper()] if options.format else by_name


def _image_id_of_name(image: pathlib.Path) -> ids.ImageId:
    try:
        if image.suffix in ENDINGS.values():
            return ids.parse_image_id(image.stem)
    except ValueError:
        pass
    raise ValueError(
        f"{image.name} is not named <UUID>.raw or <UUID>.qcow2: pass the image's id with --image-id"
    )


def _parse_chunk_size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    size = int(match[1]) * _UNITS[match[2]] if match else 0
    if not geometry.is_chunk_size(size):
        raise ValueError(f"not a power of two from 16K to 4M: {text!r}")
    return size


def _parse_os_hash(text: str) -> chunk_map.OsHash:
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


if __name__ == "__main__":
    sys.exit(main())
