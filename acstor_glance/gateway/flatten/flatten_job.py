# SPDX-License-Identifier: Apache-2.0
"""One job: merges a delta and its backing image while both arrive, and uploads.

    client, delta         --> DeltaBody   \\
                                            merge_plan, qcow2_writer --> ImageUploader --> Glance
    stores, backing image --> BackingFile /
"""

import collections
import http
import math
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from concurrent import futures
from typing import NamedTuple

from acstor_common import errors
from acstor_common.disks import disk_delta
from acstor_common.disks import qcow2
from acstor_common.disks import qcow2_header
from acstor_common.disks import qcow2_writer
from acstor_common.formats import chunk_map
from acstor_common.formats import codecs
from acstor_common.formats import layout
from acstor_common.model import ids
from acstor_glance.gateway import byte_range
from acstor_glance.gateway import http_errors
from acstor_glance.gateway import image_lookup
from acstor_glance.gateway import range_reader
from acstor_glance.gateway.flatten import backing_file
from acstor_glance.gateway.flatten import delta_body
from acstor_glance.gateway.flatten import flatten_limits
from acstor_glance.gateway.flatten import image_upload
from acstor_glance.gateway.flatten import merge_plan
from acstor_glance.gateway.flatten import watchdog
from acstor_glance.prepare import preparation_budget

RAW, QCOW2 = (
    disk_format.glance_name for disk_format in (layout.DiskFormat.RAW, layout.DiskFormat.QCOW2)
)
FORMATS = frozenset({RAW, QCOW2})
READ_BYTES = 4 << 20
READS_AHEAD = 3
SEND_BYTES = 1 << 20
CLUSTER_BYTES = 1 << 16  # cluster size of the result, as qemu-img's
MIN_KEPT_CLUSTER_BYTES = 1 << 14
"""QEMU cannot read large disks with smaller clusters, so they are not kept."""
_ZEROS = bytes(SEND_BYTES)


class FlattenRequest(NamedTuple):
    """A client's request to fill an image in ``raw`` or ``qcow2``."""

    image_id: ids.ImageId
    disk_format: str
    caller: image_lookup.Caller


class BackingImage(NamedTuple):
    """A readable backing image; ``disk`` is None if it is raw."""

    file: backing_file.BackingFile
    disk: qcow2.Qcow2 | None

    def iter_extents(self) -> Iterable[layout.Extent]:
        """Return the extents of its disk."""
        if self.disk is not None:
            return self.disk.iter_extents()
        size = self.file.size_bytes
        return [layout.Extent(0, size, layout.Codec.STORED, 0, size)]

    @property
    def disk_bytes(self) -> int:
        """Length of its disk, as stated."""
        return self.disk.virtual_size if self.disk is not None else self.file.size_bytes

    @property
    def cluster_bytes(self) -> int:
        """Cluster size of the resulting image."""
        own = self.disk.cluster_bytes if self.disk is not None else 0
        return own if own >= MIN_KEPT_CLUSTER_BYTES else CLUSTER_BYTES


class FlattenJob:
    """One job; :meth:`run` executes it in a thread."""

    def __init__(
        self,
        lookup: image_lookup.ImageLookup,
        reader: range_reader.RangeReader,
        uploader: image_upload.ImageUploader,
        request: FlattenRequest,
        body: delta_body.DeltaBody,
        watch: watchdog.Watchdog,
        ratio: int,  # limit of decoded bytes per byte of the file or the delta
    ) -> None:
        self._ratio, self._budget = ratio, preparation_budget.PreparationBudget("the base")
        self._lookup, self._reader, self._uploader = lookup, reader, uploader
        self._request, self._body, self._watch = request, body, watch
        self._file: backing_file.BackingFile | None = None
        self._data = image_upload.UploadBody((), 0)
        self._last_decoded: tuple[layout.Extent | None, codecs.Buffer] = (None, b"")

    @property
    def sent_bytes(self) -> int:
        """Bytes that Glance has received."""
        return self._data.sent_bytes

    @property
    def file_bytes(self) -> int:
        """Length of the resulting file."""
        return self._data.length

    @property
    def base_bytes(self) -> int:
        """Bytes read of the backing image."""
        return self._file.read_bytes if self._file else 0

    def run(self, timeout_s: float) -> None:
        """Merge and upload the image; ``timeout_s``: longest wait for Glance per part."""
        request = self._request
        self._uploader.check_target(request.image_id, request.caller, request.disk_format)
        head, table = self._body.read_header()
        image = self._base_image(head)
        pool = futures.ThreadPoolExecutor(READS_AHEAD, thread_name_prefix="base")
        try:
            self._data = self._make_body(self._open_backing(image), head, table, pool)
            self._uploader.upload_image(request.image_id, request.caller, self._data, timeout_s)
        finally:
            self._watch.stop_work(_conflict("the job has ended"))  # stops reads in progress
            pool.shutdown(wait=False, cancel_futures=True)

    def _base_image(self, head: disk_delta.Head) -> image_lookup.ReadableImage:
        try:
            image = self._lookup.get_readable(head.base, self._request.caller)
        except http_errors.HttpError as error:
            words = f"the base {head.base}: {error.message}"
            raise http_errors.HttpError(error.status, words) from error
        if image.disk_format not in FORMATS:
            raise _conflict(f"the base's format is {image.disk_format or 'not a bare one'}")
        unknown = chunk_map.UNKNOWN_OS_HASH
        if unknown not in (head.os_hash, image.os_hash) and head.os_hash != image.os_hash:
            raise _conflict("the delta has another base: its hash differs from Glance's")
        return image

    def _open_backing(self, image: image_lookup.ReadableImage) -> BackingImage:
        def read(requested: byte_range.ByteRange) -> bytes:
            return self._reader.read_part(image, requested, self._request.caller)

        name = f"the base {image.image_id}"
        self._file = backing_file.BackingFile(name, image.size_bytes, read, self._watch)
        self._budget = preparation_budget.PreparationBudget(
            name, image.size_bytes, self._ratio, math.inf
        )
        if image.disk_format == RAW:
            return BackingImage(self._file, None)
        try:
            return BackingImage(self._file, qcow2.Qcow2(self._file))
        except qcow2_header.Refused as error:
            raise _conflict(str(error)) from error

    def _make_body(
        self,
        base: BackingImage,
        head: disk_delta.Head,
        table: disk_delta.ExtentTable,
        pool: futures.Executor,
    ) -> image_upload.UploadBody:
        size = head.virtual_size
        bounds = flatten_limits.limits_for(
            base.file.size_bytes, base.disk_bytes, head.stream_bytes, self._ratio
        )
        self._watch.set_deadline(bounds.longest_s)

        def disk() -> Iterator[merge_plan.DiskPiece]:
            pieces = merge_plan.pieces(table, base.iter_extents(), size)
            for piece in flatten_limits.bounded_pieces(pieces, bounds):
                self._watch.raise_if_stopped()
                yield piece

        def runs() -> Iterator[merge_plan.ClusterRun]:
            return merge_plan.cluster_runs(disk(), base.cluster_bytes)

        quota_bytes = self._lookup.quota_left(self._request.caller)
        if self._request.disk_format == RAW:
            flatten_limits.check_file(size, bounds, quota_bytes)
            return image_upload.UploadBody(
                self._join_parts(self._bytes_of(base.file, disk(), pool)), size
            )
        plan = _plan_qcow2(base, size, lambda: (planned.run for planned in runs()))
        flatten_limits.check_file(plan.file_bytes, bounds, quota_bytes)
        pieces = (piece for planned in runs() for piece in planned.pieces)
        source = self._bytes_of(base.file, pieces, pool)
        parts = plan.iter_parts(lambda run: _next_bytes(source, run))
        return image_upload.UploadBody(self._join_parts(parts), plan.file_bytes)

    def _join_parts(self, parts: Iterable[codecs.Buffer]) -> Iterator[codecs.Buffer]:
        held = bytearray()
        try:
            for part in parts:
                if not held and len(part) >= SEND_BYTES:
                    yield part
                    self._watch.note_progress()
                    continue
                held += part
                if len(held) >= SEND_BYTES:
                    yield bytes(held)
                    self._watch.note_progress()
                    held.clear()
        except (qcow2_header.Refused, errors.Unusable) as error:
            raise http_errors.FlattenAborted(
                http.HTTPStatus.CONFLICT, str(error), "base"
            ) from error
        yield bytes(held)

    def _bytes_of(
        self,
        file: backing_file.BackingFile,
        pieces: Iterable[merge_plan.DiskPiece],
        pool: futures.Executor,
    ) -> Iterator[codecs.Buffer]:
        in_flight: collections.deque[tuple[merge_plan.Batch, futures.Future[bytes] | None]] = (
            collections.deque()
        )
        for batch in merge_plan.batches(pieces, READ_BYTES):
            job = pool.submit(file.read_part, batch.offset, batch.length) if batch.length else None
            in_flight.append((batch, job))
            if len(in_flight) > READS_AHEAD:
                yield from self._bytes_of_batch(*in_flight.popleft())
        while in_flight:
            yield from self._bytes_of_batch(*in_flight.popleft())

    def _bytes_of_batch(
        self, batch: merge_plan.Batch, job: "futures.Future[bytes] | None"
    ) -> Iterator[codecs.Buffer]:
        stored = memoryview(job.result() if job is not None else b"")
        for piece in batch.pieces:
            if piece.origin is merge_plan.PieceOrigin.DELTA:
                yield from self._body.read(piece.length)
            elif piece.origin is merge_plan.PieceOrigin.ZERO:
                for start in range(0, piece.length, SEND_BYTES):
                    yield _ZEROS[: piece.length - start]
            else:
                yield self._of_base(piece, stored, batch.offset)

    def _of_base(
        self, piece: merge_plan.DiskPiece, stored: memoryview, offset: int
    ) -> codecs.Buffer:
        start, stop = merge_plan.stored_range(piece)
        own = stored[start - offset : stop - offset]
        extent = piece.extent
        if piece.origin is merge_plan.PieceOrigin.COMPRESSED or extent is None:
            return own
        if extent.codec is layout.Codec.STORED:
            return own
        if self._last_decoded[0] != extent:
            self._last_decoded = extent, self._decoded(extent, own)
        skip = piece.at - extent.at
        return memoryview(self._last_decoded[1])[skip : skip + piece.length]

    def _decoded(self, extent: layout.Extent, stored: memoryview) -> codecs.Buffer:
        began_s = time.thread_time()
        try:
            decoded = codecs.decode(extent.codec, stored, extent.length)
        except codecs.CodecError as error:
            words = f"the base: the cluster at {extent.at} of the disk: {error}"
            raise http_errors.FlattenAborted(http.HTTPStatus.CONFLICT, words, "base") from error
        self._budget.charge_decoded(len(decoded), time.thread_time() - began_s)
        return decoded


def _plan_qcow2(
    base: BackingImage, size: int, runs: Callable[[], Iterator[qcow2_writer.DiskRun]]
) -> qcow2_writer.Plan:
    codec = base.disk.codec if base.disk is not None else layout.Codec.STORED
    try:
        return qcow2_writer.Plan(size, base.cluster_bytes, codec, runs)
    except qcow2_header.Refused as error:
        raise _conflict(str(error)) from error


def _next_bytes(
    source: Iterator[codecs.Buffer], run: qcow2_writer.DiskRun
) -> Iterator[codecs.Buffer]:
    """Yield the bytes of the next run; no piece crosses a run's end."""
    left = run.packed_bytes or run.length
    while left:
        data = next(source)
        left -= len(data)
        yield data


def _conflict(words: str) -> http_errors.HttpError:
    return http_errors.HttpError(http.HTTPStatus.CONFLICT, words)
