# SPDX-License-Identifier: Apache-2.0
"""Reader for drivers that read from an offset on (file, cinder)."""

from collections.abc import Iterable
from typing import Any

import glance_store

from acstor_glance.gateway import byte_range
from acstor_glance.gateway.readers import base


class OffsetReader(base.Reader):
    """Reads by glance_store's interface; ``find_store`` returns the driver."""

    def __init__(self, name: str, find_store: Any) -> None:
        super().__init__(name)
        self._find_store = find_store

    def read(self, location: Any, requested: byte_range.ByteRange) -> base.ObjectRange:
        """Read a range; see :meth:`base.Reader.read`."""
        try:
            store = self._find_store(self.name)
            size_bytes = store.get_size(location)
            if requested.offset + requested.length > size_bytes:
                raise self.status_error(416, "")
            pieces, _ = store.get(location, offset=requested.offset, chunk_size=requested.length)
            data = _joined(pieces, requested.length)
        except glance_store.NotFound as error:
            raise base.ObjectMissing(self.name, "it has no such object") from error
        except (
            glance_store.StoreGetNotSupported,
            glance_store.StoreRandomGetNotSupported,
        ) as error:
            raise base.RangesUnsupported(
                self.name, "it does not support reads at an offset"
            ) from error
        except (glance_store.GlanceStoreException, OSError) as error:
            raise base.StoreUnreachable(self.name, type(error).__name__) from error
        if len(data) != requested.length:
            raise base.StoreUnreachable(
                self.name,
                f"it returned {len(data)} of {requested.length} bytes from {requested.offset} on",
            )
        return base.ObjectRange(data, size_bytes)


def _joined(pieces: Iterable[bytes], length: int) -> bytes:
    """Return ``length`` bytes; some drivers continue to the image's end."""
    taken: list[bytes] = []
    left = length
    for piece in pieces:
        taken.append(piece[:left])
        left -= len(taken[-1])
        if not left:
            break
    return b"".join(taken)
