# SPDX-License-Identifier: Apache-2.0
"""Preferred stores of Glance: those whose name is a level of the host's location.

Glance (from 2026.2) reads an image from them, if it is there, by the request's ``prefer``.
"""

import logging
from collections.abc import Callable
from collections.abc import Sequence
from urllib import parse

import trio
from keystoneauth1 import exceptions
from keystoneauth1 import session as keystone_session

from acstor_agent.sources import base
from acstor_agent.sources.http_client import http_range
from acstor_common.util import lru_table

LOG = logging.getLogger(__name__)

SUSPENDED_S = 300.0  # time without preference for a blob after Glance refused it
BLOBS_LIMIT = 4096
REFUSALS = frozenset({400, 403})
"""Glance's answers if a store is gone, gives no ranges, or the policy forbids the preference."""


class StorePreference:
    """The stores that a host at a location prefers; none without ``levels``."""

    def __init__(
        self, levels: Sequence[str] = (), clock: Callable[[], float] = trio.current_time
    ) -> None:
        self._levels, self._clock = frozenset(levels) - {""}, clock
        self._token, self._query = "", ""
        self._suspended = lru_table.LruTable[base.Blob, float](BLOBS_LIMIT)

    def find_stores(self, session: keystone_session.Session, token: str, endpoint: str) -> str:
        """Return the query of requests, empty without preferred stores; asks once per token."""
        if self._levels and token != self._token:
            self._query, self._token = self._asked(session, endpoint), token
        return self._query

    def _asked(self, session: keystone_session.Session, endpoint: str) -> str:
        try:
            answer = session.get(f"{endpoint}/v2/info/stores", headers={})
            known = {str(store["id"]) for store in answer.json()["stores"]}
        except exceptions.NotFound:
            return ""  # this Glance has one store, without a name
        except (exceptions.ClientException, ValueError, TypeError, KeyError) as error:
            LOG.info("Glance does not list its stores, so none is preferred: %s", error)
            return ""
        names = ",".join(sorted(self._levels & known))
        return f"?prefer={parse.quote(names, safe=',')}" if names else ""

    def query_of(self, blob: base.Blob, query: str) -> str:
        """Return the query of a request for a blob; empty while Glance refuses it."""
        return "" if self._clock() < self._suspended.get(blob, 0.0) else query

    def suspend(self, blob: base.Blob, error: http_range.RangeRefused) -> bool:
        """Return whether the preference may have caused a refusal; the next request has none."""
        if "?prefer=" not in error.range_request.where or error.status not in REFUSALS:
            return False
        LOG.info("%s: Glance answers %d with preferred stores", blob.file_name, error.status)
        self._suspended[blob] = self._clock() + SUSPENDED_S
        return True
