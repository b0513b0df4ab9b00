# SPDX-License-Identifier: Apache-2.0
"""Client of the decision service's REST API for checkpoints, with a user's token."""

import contextlib
from collections.abc import Iterator
from typing import Annotated
from typing import TypeVar

import msgspec
import requests
from keystoneauth1 import exceptions

from acstor_common import errors
from acstor_common.service import bounded_responses
from acstor_common.service import tracing
from acstor_common.wire import checkpoint_messages

T = TypeVar("T")

TIMEOUT_S = (5.0, 30.0)  # timeouts to connect and of silence; the API may have to ask Keystone
MAX_ANSWER_BYTES = 1024 * 1024
NEWEST = 10  # limit of checkpoints to try, newest first


class CheckpointSummary(msgspec.Struct):
    """A checkpoint in the list; ``taken_at`` is in ISO 8601."""

    checkpoint_id: str
    taken_at: str


class _List(msgspec.Struct):
    checkpoints: Annotated[list[CheckpointSummary], msgspec.Meta(max_length=NEWEST)]


class _Error(msgspec.Struct):
    message: str = ""


class _Failure(msgspec.Struct):
    error: _Error = msgspec.field(default_factory=_Error)


class DecisionClient:
    """Client for one caller; its methods raise DecisionUnreachable."""

    def __init__(
        self, url: str, ca_file: str, token: str, timeout_s: tuple[float, float] = TIMEOUT_S
    ) -> None:
        self._url, self._verify = url.rstrip("/"), ca_file or True
        self._headers = {"X-Auth-Token": token, "Accept": "application/json"}
        self._timeout_s = timeout_s

    def newest_checkpoints(self, instance_id: str) -> list[CheckpointSummary]:
        """Return the newest checkpoints of a server, newest first."""
        query = f"?instance={instance_id}&limit={NEWEST}"
        return self._get(f"/v1/checkpoints{query}", _List).checkpoints

    def checkpoint_recovery(self, checkpoint_id: str) -> checkpoint_messages.RecoveryData:
        """Return the data to make a disk of a checkpoint."""
        path = f"/v1/checkpoints/{checkpoint_id}/recovery"
        return self._get(path, checkpoint_messages.RecoveryData)

    def _get(self, path: str, kind: type[T]) -> T:
        span = tracing.Span("acstor_decision_call", path=path)
        with span, translated_errors(self._url + path), requests.Session() as session:
            bounded_responses.bound_requests(session, MAX_ANSWER_BYTES)
            answer = session.get(
                self._url + path,
                headers={**self._headers, **tracing.trace_headers()},
                timeout=self._timeout_s,
                verify=self._verify,
                allow_redirects=False,
            )
            if answer.status_code != requests.codes.ok:
                why = fault_text(answer.status_code, answer.content)
                raise errors.DecisionUnreachable(self._url + path, why)
            return msgspec.json.decode(answer.content, type=kind)


@contextlib.contextmanager
def translated_errors(url: str) -> Iterator[None]:
    """Raise DecisionUnreachable for the errors of a request and of its answer."""
    try:
        yield
    except (
        exceptions.ClientException,
        requests.RequestException,
        OSError,
        ValueError,
        msgspec.DecodeError,
        RecursionError,
    ) as e:
        raise errors.DecisionUnreachable(url, f"{type(e).__name__}: {e}") from e


def fault_text(status: int, raw: bytes) -> str:
    """Return the reason that an answer of the API gives, with its HTTP status."""
    reason = ""
    with contextlib.suppress(msgspec.DecodeError):
        reason = msgspec.json.decode(raw, type=_Failure).error.message
    return f"{reason} (HTTP {status})" if reason else f"HTTP {status}"
