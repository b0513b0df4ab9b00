# SPDX-License-Identifier: Apache-2.0
"""Boot traces in a folder, for hosts without a message bus: one JSON file each, some at most."""

import logging
import pathlib

import msgspec
import xxhash

from acstor_common import trace_message
from acstor_common import whole_file

LOG = logging.getLogger(__name__)

FILES_LIMIT = 64
ENDING = ".actrace"


class TraceSpool:
    """The folder; a trace more than it holds takes the place of the oldest.

    It writes some 10 KiB a boot at once, from the event loop: a thread would cost as much.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        folder.mkdir(exist_ok=True)
        whole_file.remove_leftovers(folder)
        self._folder = folder

    def put(self, trace: trace_message.BootTrace) -> None:
        """Keep a trace; a disk that is full costs the trace."""
        try:
            files = sorted(self._folder.glob(f"*{ENDING}"), key=lambda path: path.stat().st_mtime)
            for old in files[: max(0, len(files) + 1 - FILES_LIMIT)]:
                old.unlink()
            raw = msgspec.json.encode(trace)
            name = f"{trace.image_id}-{xxhash.xxh3_64_hexdigest(raw)}{ENDING}"
            with whole_file.written(self._folder / name) as file:
                file.write(raw)
        except OSError as e:
            LOG.warning("boot trace of image %s is lost: %s", trace.image_id, e)
