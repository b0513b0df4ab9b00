# SPDX-License-Identifier: Apache-2.0
"""Enrols this host with the decision service and renews its certificate in time.

Guests need no certificate, and peers use the old one until its grace has passed. Failures are
logged with a remedy, and retried. keystoneauth blocks, so each attempt runs in a thread of its own,
which a timeout abandons; its late response is dropped.
"""

import functools
import logging
import pathlib
import random
import re
import threading
import time
from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import msgspec
import trio
from keystoneauth1 import adapter as keystone_adapter
from keystoneauth1 import exceptions
from keystoneauth1 import loading
from oslo_config import cfg

from acstor_agent import conf as agent_conf
from acstor_agent.core.cloud import certificate_renewal
from acstor_agent.sources import blocking_threads
from acstor_agent.sources import glance
from acstor_agent.sources import keystone_auth
from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import identity_files
from acstor_common.identity import signing
from acstor_common.model import clocks
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.service import bounded_responses
from acstor_common.service import session_options
from acstor_common.util import atomic_file
from acstor_common.util import log_once
from acstor_common.wire import decision_messages
from acstor_common.wire import signed_messages

LOG = logging.getLogger(__name__)

GROUP = agent_conf.ENROLMENT.name
ATTEMPT_S = 300.0  # timeout of an attempt, Keystone and the service together
TICK_S = 30.0  # longest sleep, because the wall clock may be set meanwhile
MAX_WHY = 300  # characters of the service's message in an error
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class EnrolmentResponse(msgspec.Struct, frozen=True):
    """The decision service's response to a certificate request."""

    certificate: str
    ca: str  # PEM of the authorities that issue certificates of hosts
    signers: str  # PEM of the public keys that sign tables and tasks
    not_after: float  # of the certificate, in seconds since 1970
    now: float  # the service's wall clock, likewise


class EnrolmentState(NamedTuple):
    """State of enrolment, for ``status``."""

    enrolled: int = 0  # certificates received since the start
    failures: int = 0  # consecutive ones
    error: str = ""  # reason of the last failure; "" after a success
    clock_offset_s: float = 0.0  # of this host's clock from the service's
    fingerprint: str = ""  # SHA-256 of the key of a failing request


def is_configured(conf: cfg.ConfigOpts) -> bool:
    """Return whether the configuration enables enrolment."""
    own = conf[GROUP]
    return bool(own.auth_section or own.auth_type)


def from_conf(
    conf: cfg.ConfigOpts,
    host: ids.HostId,
    files: identity_files.IdentityFiles,
    rings: hash_ring.RingProvider,
) -> "HostEnrolment | None":
    """Return this host's enrolment, None if not configured; raise Unusable for invalid options."""
    if not is_configured(conf):
        return None
    if conf.acstor_agent.identity_dir:
        raise errors.Unusable(
            f"[{GROUP}]",
            "the certificates of [acstor_agent] identity_dir would be replaced",
            "Remove that option, or the whole section",
        )
    api, section = _adapter(conf), conf[GROUP].auth_section or GROUP
    configured = session_options.describe(section, conf[section])
    return HostEnrolment(host, files, api, rings, configured=configured)


class HostEnrolment:
    """Keeps the host's certificate valid; keep :meth:`run` running.

    :param rings: knows the table with the revocations
    :param configured: options and user for Keystone, for error texts
    """

    def __init__(
        self,
        host: ids.HostId,
        files: identity_files.IdentityFiles,
        api: keystone_adapter.Adapter,
        rings: hash_ring.RingProvider,
        clock: clocks.Clock = time,
        rng: Callable[[], float] = random.random,
        configured: str = "",
    ) -> None:
        self.state = EnrolmentState()
        self._host, self._files, self._api = host, files, api
        self._clock, self._rng, self._rings = clock, rng, rings
        self._configured = f" ({configured})" if configured else ""
        self._asked_for = ""
        self._answered = (0.0, 0.0)
        """The service's time in its last response, and the time of arrival."""
        self._url_log = log_once.LogOnce(LOG)
        self._thread = blocking_threads.BlockingThreads("the decision service", 1)

    async def run(self) -> None:
        """Request certificates when they are due, forever."""
        while True:
            await self._wait_until_due()
            abandoned = threading.Event()
            enrol = functools.partial(self._enrol, abandoned)
            try:
                with trio.fail_after(ATTEMPT_S):
                    answer = await self._thread.run("a certificate", None, enrol)
            except trio.TooSlowError:
                abandoned.set()
                await self._record_failure(f"no answer within {ATTEMPT_S:.0f} s")
            except (
                errors.NotEnrolled,
                errors.NotAuthenticated,
                errors.SourceUnreachable,
                OSError,
            ) as e:
                await self._record_failure(str(e))
            except Exception as e:  # libraries raise odd errors; none may end the worker
                await self._record_failure(f"unexpected: {e!r}")
            else:
                self._record_success(answer)
                await trio.sleep(
                    certificate_renewal.RETRY_FIRST_S
                )  # however short the certificate's lifetime

    async def _wait_until_due(self) -> None:
        """Wait until the certificate is due by the service's clock, or the host is revoked."""
        certificate = self._files.current_credentials().certificate
        if certificate is None:
            return
        due_s = certificate_renewal.due_s(certificate, self._rng())
        while True:
            self._compare_clocks()
            now_s = self._clock.time() - self.state.clock_offset_s
            if due_s <= now_s or certificates.time_fault(certificate, now_s, 0.0):
                return
            if certificates.is_revoked(certificate, self._rings.current_ring().revoked):
                return
            await trio.sleep(max(1.0, min(TICK_S, due_s - now_s)))

    def _record_success(self, answer: EnrolmentResponse) -> None:
        self._answered = answer.now, trio.current_time()
        self.state = EnrolmentState(
            self.state.enrolled + 1, clock_offset_s=self.state.clock_offset_s
        )
        self._compare_clocks()
        left_s = answer.not_after - answer.now
        LOG.info("host %s has a certificate for %.0f s", self._host, left_s)

    def _compare_clocks(self) -> None:
        if self.state.failures or not self.state.enrolled:
            return
        service_s, then_s = self._answered
        off_s = self._clock.time() - service_s - (trio.current_time() - then_s)
        error = certificate_renewal.clock_fault(off_s)
        if error and not certificate_renewal.clock_fault(self.state.clock_offset_s):
            LOG.warning("%s: set the clock, or other hosts will refuse this host", error)
        self.state = self.state._replace(error=error, clock_offset_s=off_s)

    async def _record_failure(self, why: str) -> None:
        failures = self.state.failures + 1
        level = logging.INFO if why == self.state.error else logging.WARNING
        LOG.log(level, "no new certificate: %s; trying again", why)
        self.state = self.state._replace(failures=failures, error=why, fingerprint=self._asked_for)
        await trio.sleep(certificate_renewal.retry_s(failures, self._rng()))

    # In a thread

    def _enrol(self, abandoned: threading.Event) -> EnrolmentResponse:
        folder: pathlib.Path = self._files.files.certificate.parent
        key = _next_key(folder)
        request = certificates.request(self._host, key)
        self._log_key(certificates.fingerprint(certificates.request_key(request)))
        answer = self._ask(request)
        new = identity_files.IdentitySet(
            answer.ca.encode(), answer.certificate.encode(), key, answer.signers.encode()
        )
        identity_files.check_set(new, self._host)
        signing.read_public_keys(new.signers)
        if abandoned.is_set():
            raise errors.NotEnrolled("too late")
        identity_files.write(folder, new)
        pending_key(folder).unlink(missing_ok=True)
        self._files.invalidate()
        return answer

    def _log_key(self, fingerprint: str) -> None:
        if fingerprint != self._asked_for:
            self._asked_for = fingerprint
            LOG.info("host %s requests a certificate for the key %s", self._host, fingerprint)

    def _ask(self, request: bytes) -> EnrolmentResponse:
        body = {"csr": request.decode(), "proof": self._proof(request)}
        try:
            self._url_log.log_warning(
                decision_messages.why_insecure(self._api.get_endpoint() or "")
            )
            response = self._api.post(
                f"/v1/hosts/{self._host}/certificate", json=body, raise_exc=False
            )
        except (exceptions.ConnectionError, exceptions.HttpServerError) as e:
            why = f"{e}{self._configured}"
            raise errors.NotEnrolled(
                f"Keystone or the decision service is unreachable: {why}"
            ) from e
        except exceptions.ClientException as e:
            why = f"{e}{self._configured}"
            raise errors.NotEnrolled(f"Keystone refuses the credentials: {why}") from e
        except Exception as e:  # keystoneauth takes each answer for what it should be
            why = f"{e!r}{self._configured}"
            raise errors.NotEnrolled(f"Keystone's answer is invalid: {why}") from e
        if response.status_code not in (200, 201):
            raise errors.NotEnrolled(refusal_text(response.status_code, response.content))
        try:
            return msgspec.json.decode(response.content, type=EnrolmentResponse)
        except _NOT_JSON as e:
            raise errors.NotEnrolled(f"invalid answer: {e}") from e

    def _proof(self, request: bytes) -> str:
        """Return a proof of the last certificate's key, so that others cannot enrol as us."""
        identity = self._files.current_credentials()
        if identity.certificate is None:
            return ""
        return signed_messages.signature_of(signing.RENEWAL, request, identity.key)


def pending_key(folder: pathlib.Path) -> pathlib.Path:
    """Return the file of the next certificate's key."""
    return folder.with_name(f"{folder.name}-next-key.pem")


def _next_key(folder: pathlib.Path) -> bytes:
    """Return the next certificate's key, the same until issued: the service may have bound it."""
    path = pending_key(folder)
    try:
        key = path.read_bytes()
        signing.read_key(key)
    except (FileNotFoundError, errors.NotAuthenticated):
        key = certificates.new_key()
        folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file.atomic_write(path, 0o600) as file:
            file.write(key)
    return key


def refusal_text(status: int, body: bytes) -> str:
    """Describe the refusal in a response of the decision service.

    >>> refusal_text(403, b'{"error": {"code": 403, "message": "no policy allows it"}}')
    'the decision service refuses (403): no policy allows it'
    """
    try:
        error = msgspec.json.decode(body)["error"]
        reason = str(error["message"])
    except (*_NOT_JSON, KeyError, TypeError):
        reason = "it gives no reason, so the address may be of another service"
    return f"the decision service refuses ({status}): {re.sub('[^ -~]', '?', reason[:MAX_WHY])}"


def _adapter(conf: cfg.ConfigOpts) -> keystone_adapter.Adapter:
    own = conf[GROUP]
    try:
        if own.auth_section == glance.GROUP:
            auth: Any = keystone_auth.auth(conf[glance.GROUP], glance.GROUP)
        else:
            auth = loading.load_auth_from_conf_options(conf, GROUP)
        session = loading.load_session_from_conf_options(conf, GROUP, auth=auth)
        bounded_responses.bound(session)
        made = loading.load_adapter_from_conf_options(conf, GROUP, session=session)
    except (exceptions.ClientException, cfg.Error) as e:
        raise errors.Unusable(f"[{GROUP}]", str(e), "See auth_type and the options after") from e
    if own.auth_section == glance.GROUP and not own.cafile:
        session.verify = conf[glance.GROUP].ca_file or True
    return made
