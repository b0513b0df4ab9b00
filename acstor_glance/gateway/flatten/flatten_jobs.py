# SPDX-License-Identifier: Apache-2.0
"""Starts flatten jobs, reports their progress and counts results.

A thread of the WSGI server waits until another thread has read the body, because the server owns
it. A failure before that has its own HTTP status. Afterwards lines of progress keep the connection
alive, and the last one has the result.
"""

import contextlib
import http
import logging
import traceback
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import msgspec

from acstor_common.service import tracing
from acstor_glance.gateway import gateway_metrics
from acstor_glance.gateway import http_errors
from acstor_glance.gateway import image_lookup
from acstor_glance.gateway import range_reader
from acstor_glance.gateway import read_admission
from acstor_glance.gateway.flatten import delta_body
from acstor_glance.gateway.flatten import flatten_job
from acstor_glance.gateway.flatten import image_upload
from acstor_glance.gateway.flatten import job_slots
from acstor_glance.gateway.flatten import watchdog

LOG = logging.getLogger(__name__)

IDLE_TIMEOUTS = 12  # timeouts of a read after which a job without progress fails
PROGRESS_INTERVAL_S = 5.0
CHECK_INTERVAL_S = 0.1


class FlattenJobs:
    """The flatten jobs of this process; ``ratio`` is ``max_expansion_ratio``."""

    def __init__(
        self,
        lookup: image_lookup.ImageLookup,
        reader: range_reader.RangeReader,
        uploader: image_upload.ImageUploader,
        ratio: int,
        counters: gateway_metrics.GatewayMetrics,
    ) -> None:
        self._lookup, self._reader, self._uploader = lookup, reader, uploader
        self._ratio = ratio
        self._stall_s, self._counters = IDLE_TIMEOUTS * read_admission.TIMEOUT_S, counters
        self._slots = job_slots.JobSlots(job_slots.JOBS, -(-job_slots.JOBS // 2))
        self._threads = futures.ThreadPoolExecutor(job_slots.JOBS, thread_name_prefix="flatten")
        counters.flatten_jobs_limit.set(job_slots.JOBS)

    def start_job(
        self, request: flatten_job.FlattenRequest, project_id: str, stream: Any, length_bytes: int
    ) -> Iterator[bytes]:
        """Start a job; return the answer's lines when the body (``wsgi.input``) is complete."""
        watch = watchdog.Watchdog(self._stall_s)
        body = delta_body.DeltaBody(stream, length_bytes, request.image_id, watch)
        work = flatten_job.FlattenJob(
            *(self._lookup, self._reader, self._uploader, request, body, watch, self._ratio)
        )
        slot = contextlib.ExitStack()
        try:
            slot.enter_context(self._slots.acquire_slot(project_id))
        except http_errors.HttpError:
            self._counters.count_job("busy")
            raise
        self._counters.flatten_jobs_in_flight.inc()
        trace = tracing.trace_headers()
        job = self._threads.submit(self._run, request, work, body, slot, trace)
        self._wait(job, body, watch)
        if job.done() and (error := job.exception()):
            raise error
        return self._lines(job, work, body, watch)

    def _wait(
        self, job: futures.Future[None], body: delta_body.DeltaBody, watch: watchdog.Watchdog
    ) -> None:
        while not body.verified.is_set():
            if futures.wait((job,), CHECK_INTERVAL_S).done:
                return
            self._stop_if_stalled(body, watch)

    def _stop_if_stalled(self, body: delta_body.DeltaBody, watch: watchdog.Watchdog) -> None:
        """Stop a stalled job; Glance and the stores have their own timeouts."""
        if not watch.is_stalled:
            return
        if body.is_waiting:
            words = f"no data of the delta arrived for {self._stall_s:g} s"
            watch.stop_work(
                http_errors.FlattenAborted(http.HTTPStatus.REQUEST_TIMEOUT, words, "client")
            )
            body.abort_read()
        else:
            words = f"no progress for {self._stall_s:g} s"
            watch.stop_work(
                http_errors.FlattenAborted(http.HTTPStatus.GATEWAY_TIMEOUT, words, "base")
            )

    def _lines(
        self,
        job: futures.Future[None],
        work: flatten_job.FlattenJob,
        body: delta_body.DeltaBody,
        watch: watchdog.Watchdog,
    ) -> Iterator[bytes]:
        try:
            while not job.done():
                progress = {"state": "uploading", "sent_bytes": work.sent_bytes}
                yield _line({**progress, "file_bytes": work.file_bytes})
                futures.wait((job,), PROGRESS_INTERVAL_S)
                self._stop_if_stalled(body, watch)
            yield _line(_outcome(job.exception(), work, body))
        finally:  # also when the client disconnects
            words = "the client disconnected"
            watch.stop_work(
                http_errors.FlattenAborted(http.HTTPStatus.BAD_REQUEST, words, "client")
            )

    def _run(
        self,
        request: flatten_job.FlattenRequest,
        work: flatten_job.FlattenJob,
        body: delta_body.DeltaBody,
        slot: contextlib.ExitStack,
        trace: dict[str, str],
    ) -> None:
        outcome, why = "done", ""
        image_id = request.image_id
        try:
            with slot, tracing.continue_trace(trace), tracing.Span("acstor_merge", image=image_id):
                work.run(self._stall_s)
        except http_errors.HttpError as error:
            outcome = error.party if isinstance(error, http_errors.FlattenAborted) else "refused"
            why = error.message
            raise
        except Exception as error:
            where = "".join(traceback.format_tb(error.__traceback__))  # its text may hold a URL
            outcome, why = "fault", f"{type(error).__name__}\n{where}"
            words = "the gateway failed; its log says why"
            raise http_errors.HttpError(http.HTTPStatus.INTERNAL_SERVER_ERROR, words) from error
        finally:
            self._counters.flatten_jobs_in_flight.dec()
            self._counters.count_job(
                outcome, base=work.base_bytes, delta=body.read_bytes, image=work.sent_bytes
            )
            bytes_of = f"{work.sent_bytes} bytes of {work.base_bytes} and {body.read_bytes}"
            LOG.info("image %s, flattened: %s, %s %s", image_id, outcome, bytes_of, why)


def _outcome(
    error: BaseException | None, work: flatten_job.FlattenJob, body: delta_body.DeltaBody
) -> dict[str, Any]:
    if isinstance(error, http_errors.HttpError):
        return {"state": "failed", "error": http_errors.error_body(error.status, error.message)}
    return {
        "state": "done",
        "size": work.file_bytes,
        "base_bytes": work.base_bytes,
        "delta_bytes": body.read_bytes,
    }


def _line(fields: dict[str, Any]) -> bytes:
    return msgspec.json.encode(fields) + b"\n"
