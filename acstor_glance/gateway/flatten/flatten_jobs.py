# SPDX-License-Identifier: Apache-2.0
"""The compositions of this process: who may begin one, what he is told, what is counted.

A thread of the WSGI server waits for each, and another one works; the first does not
leave before the second has read the last of the body, for that is the server's own.

What fails before the body has come whole is answered with a status of its own.  After that the
client is told every few seconds how far it is, so nothing between takes the connection for
dead, and at last what came of it.
"""

import contextlib
import http
import logging
import traceback
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import msgspec

from acstor_glance.gateway import gateway_metrics
from acstor_glance.gateway import http_errors
from acstor_glance.gateway import image_lookup
from acstor_glance.gateway import range_reader
from acstor_glance.gateway.flatten import delta_body
from acstor_glance.gateway.flatten import flatten_job
from acstor_glance.gateway.flatten import image_upload
from acstor_glance.gateway.flatten import job_slots
from acstor_glance.gateway.flatten import watchdog

LOG = logging.getLogger(__name__)

IDLE_TIMEOUTS = 12
"""Timeouts of a read after which a job without progress fails."""
TOLD_EVERY_S = 5.0
LOOK_EVERY_S = 0.1
"""How soon it is seen that the body is there."""


class FlattenJobs:
    """What composes images.

    :param own: the options of the gateway
    :param ratio: max_expansion_ratio
    """

    def __init__(
        self,
        known: image_lookup.ImageLookup,
        made: range_reader.RangeReader,
        fills: image_upload.ImageUploader,
        own: Any,
        ratio: int,
        counted: gateway_metrics.GatewayMetrics,
    ) -> None:
        self._catalogue, self._service, self._filling = known, made, fills
        self._ratio = ratio
        self._still_s, self._counted = IDLE_TIMEOUTS * own.timeout_s, counted
        self._places = job_slots.JobSlots(own.max_compositions, -(-own.max_compositions // 2))
        threads = max(1, own.max_compositions)
        self._threads = futures.ThreadPoolExecutor(threads, thread_name_prefix="composition")
        counted.compositions_limit.set(own.max_compositions)

    def start_job(
        self, order: flatten_job.FlattenRequest, project_id: str, stream: Any, length_bytes: int
    ) -> Iterator[bytes]:
        """Compose an image; return the lines of the answer when the body has come whole.

        :param project_id: of the caller
        :param stream: ``wsgi.input``
        :raises http_errors.HttpError: it is not to be, or has failed already
        """
        watched = watchdog.Watchdog(self._still_s)
        body = delta_body.DeltaBody(stream, length_bytes, order.image_id, watched)
        work = flatten_job.FlattenJob(
            *(self._catalogue, self._service, self._filling, order, body, watched, self._ratio)
        )
        place = contextlib.ExitStack()
        try:
            place.enter_context(self._places.acquire_slot(project_id))
        except http_errors.HttpError:
            self._counted.count_job("busy")
            raise
        self._counted.compositions_in_flight.inc()
        job = self._threads.submit(self._run, order, work, body, place)
        self._wait(job, body, watched)
        if job.done() and (error := job.exception()):
            raise error
        return self._lines(job, work, body, watched)

    def _wait(
        self, job: futures.Future[None], body: delta_body.DeltaBody, watched: watchdog.Watchdog
    ) -> None:
        """Wait until the body has come whole, or the work is over; end what stands still."""
        while not body.is_whole.is_set():
            if futures.wait((job,), LOOK_EVERY_S).done:
                return
            self._end_if_still(body, watched)

    def _end_if_still(self, body: delta_body.DeltaBody, watched: watchdog.Watchdog) -> None:
        """End what has not moved for too long.

        Glance and stores have their time-outs; this is for a client, and for tables without end.
        """
        if not watched.is_stalled:
            return
        if body.is_waiting:
            words = f"no changes came for {self._still_s:g} s"
            watched.stop_work(
                http_errors.FlattenAborted(http.HTTPStatus.REQUEST_TIMEOUT, words, "client")
            )
            body.abort_read()
        else:
            words = f"nothing moved for {self._still_s:g} s"
            watched.stop_work(
                http_errors.FlattenAborted(http.HTTPStatus.GATEWAY_TIMEOUT, words, "base")
            )

    def _lines(
        self,
        job: futures.Future[None],
        work: flatten_job.FlattenJob,
        body: delta_body.DeltaBody,
        watched: watchdog.Watchdog,
    ) -> Iterator[bytes]:
        try:
            while not job.done():
                told = {"state": "uploading", "sent_bytes": work.sent_bytes}
                yield _line({**told, "file_bytes": work.file_bytes})
                futures.wait((job,), TOLD_EVERY_S)
                self._end_if_still(body, watched)
            yield _line(_outcome(job.exception(), work, body))
        finally:  # also when the client is gone
            words = "the client did not wait for it"
            watched.stop_work(
                http_errors.FlattenAborted(http.HTTPStatus.BAD_REQUEST, words, "client")
            )

    def _run(
        self,
        order: flatten_job.FlattenRequest,
        work: flatten_job.FlattenJob,
        body: delta_body.DeltaBody,
        place: contextlib.ExitStack,
    ) -> None:
        """Do the work, count what comes of it, give the place back.

        :raises http_errors.HttpError: it failed
        """
        outcome, why = "done", ""
        try:
            with place:
                work.run(self._still_s)
        except http_errors.HttpError as error:
            outcome = error.who if isinstance(error, http_errors.FlattenAborted) else "refused"
            why = error.message
            raise
        except Exception as error:
            where = "".join(traceback.format_tb(error.__traceback__))  # its words may hold a URL
            outcome, why = "fault", f"{type(error).__name__}\n{where}"
            words = "the gateway failed; its log says why"
            raise http_errors.HttpError(http.HTTPStatus.INTERNAL_SERVER_ERROR, words) from error
        finally:
            self._counted.compositions_in_flight.dec()
            self._counted.count_job(
                outcome, base=work.base_bytes, changes=body.read_bytes, image=work.sent_bytes
            )
            bytes_of = f"{work.sent_bytes} bytes of {work.base_bytes} and {body.read_bytes}"
            LOG.info("image %s, composed: %s, %s %s", order.image_id, outcome, bytes_of, why)


def _outcome(
    error: BaseException | None, work: flatten_job.FlattenJob, body: delta_body.DeltaBody
) -> dict[str, Any]:
    if isinstance(error, http_errors.HttpError):
        return {"state": "failed", "error": http_errors.error_body(error.status, error.message)}
    return {
        "state": "done",
        "size": work.file_bytes,
        "base_bytes": work.base_bytes,
        "changes_bytes": body.read_bytes,
    }


def _line(said: dict[str, Any]) -> bytes:
    return msgspec.json.encode(said) + b"\n"
