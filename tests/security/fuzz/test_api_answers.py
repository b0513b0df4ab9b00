# SPDX-License-Identifier: Apache-2.0
"""An enrolling host accepts responses of Keystone and the decision service, or names its refusal.

The checkpoint daemon has the same identity.  ``ACSTOR_FUZZ_CASES`` sets the number of responses of
each service (100), and ``ACSTOR_FUZZ_SEED`` the seed (1).

"""

import contextlib
import http.server
import json
import pathlib
import random
import threading
import time
import tracemalloc
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest
from oslo_config import cfg

from acstor_agent import conf as agent_conf
from acstor_agent.cloud import enrolment
from acstor_common import errors
from acstor_common.identity import identity_files
from acstor_common.model import ids
from acstor_common.ring import hash_ring
from acstor_common.service import bounded_responses
from acstor_decision import nova_client
from tests.fakes import cloud_keys
from tests.fakes import one_host
from tests.security.fuzz import cases
from tests.security.fuzz import mutations

CASES, SEED = cases.CASES, cases.SEED
CASE_S = 1.0
HOST = ids.HostId("h1")
KEYS = cloud_keys.CloudKeys()
LIFE_S = 3600
MIB = 1 << 20
REFUSED = (errors.NotEnrolled, errors.NotAuthenticated)
STATUSES = (
    200,
    200,
    200,
    201,
    204,
    300,
    301,
    302,
    307,
    400,
    401,
    403,
    404,
    409,
    413,
    500,
    503,
    999,
)
PLACES = ("/", "//", "http://[::", "http://127.0.0.1:1/", "ftp://x/", "\x7f", "http://\udcff/")
TYPES = ("application/json", "text/html; charset=utf-99", "image/png", "multipart/form-data", "")

SERVER = ids.parse_image_id("0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12")
_RECORD = {"id": SERVER, "OS-EXT-SRV-ATTR:host": "h1", "tenant_id": "p", "metadata": {"a": "b"}}
NOVA: dict[str, tuple[dict[str, Any], Callable[[nova_client.NovaClient], object]]] = {
    "GET /servers/detail": ({"servers": [_RECORD]}, lambda nova: nova.metadata_on("h1")),
    "GET /servers/": ({"server": _RECORD}, lambda nova: nova.get_server(SERVER)),
    "GET /os-aggregates": (
        {"aggregates": [{"hosts": ["h1"], "metadata": {"a": "b"}}]},
        lambda nova: nova.list_aggregates(),
    ),
}
"""Responses of Nova to the decision service, and the calls that request them."""

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""
Change = Callable[[Answer, Any], Answer | None]
"""Changes a response, or sends bytes of its own over the connection."""


class Services(http.server.ThreadingHTTPServer):
    """Keystone and the decision service, with valid certificates, in threads.

    ``change`` maps the beginning of a method and path to the change of its responses.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.change = dict[str, Change]()
        self.ended = threading.Event()

    def handle_error(self, *_: Any) -> None:
        """Log nothing: a client that refuses a response closes the connection."""

    def answer(self, asked: str, body: bytes) -> Answer:
        if (nova := next((at for at in NOVA if asked.startswith(at)), None)) is not None:
            return 200, {}, json.dumps(NOVA[nova][0]).encode()
        if asked.startswith("GET"):
            links = [{"rel": "self", "href": f"{self.url}/v3/"}]
            version = {"id": "v3.14", "status": "stable", "links": links, "media-types": []}
            return 200, {}, json.dumps({"version": version}).encode()
        if asked == "POST /v3/auth/tokens":
            ends = {"issued_at": "2026-01-01T00:00:00Z", "expires_at": "2099-01-01T00:00:00Z"}
            role, named = [{"id": "r", "name": "acstor-reader"}], {"id": "u", "name": "u"}
            user = {**named, "domain": named}
            token = {**ends, "methods": ["password"], "user": user, "roles": role, "catalog": []}
            return 201, {"X-Subject-Token": "t"}, json.dumps({"token": token}).encode()
        now_s = time.time()
        csr = json.loads(body)["csr"].encode()
        given = {
            "certificate": KEYS.authority.issue_certificate(csr, HOST, now_s, LIFE_S).decode(),
            "ca": KEYS.authority.certificate_pem.decode(),
            "signers": KEYS.signers.decode(),
            "not_after": now_s + LIFE_S,
            "now": now_s,
        }
        return 200, {}, json.dumps(given).encode()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Services

    def do_GET(self) -> None:
        self._say(b"")

    def do_POST(self) -> None:
        self._say(self.rfile.read(int(self.headers["content-length"])))

    def log_message(self, *_: Any) -> None:
        pass

    def _say(self, body: bytes) -> None:
        asked = f"{self.command} {self.path}"
        found: Answer | None = self.server.answer(asked, body)
        change = next((one for at, one in self.server.change.items() if asked.startswith(at)), None)
        if change is not None and found is not None:
            found = change(found, self.wfile)
        if found is None:
            self.close_connection = True
            return
        status, headers, data = found
        head = {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}
        head["Connection"] = "close"  # a damaged message does not frame the next one
        lines = [f"HTTP/1.1 {status} Said", *(f"{name}: {said}" for name, said in head.items())]
        text = "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
        self.wfile.write(text + data)
        self.close_connection = True


@pytest.fixture
def services() -> Iterator[Services]:
    with Services() as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.ended.set()
        made.shutdown()
        thread.join()


def host_of(services: Services, folder: pathlib.Path) -> enrolment.HostEnrolment:
    """Return an enrolment client, configured as usual."""
    conf = cfg.ConfigOpts()
    agent_conf.register_opts(conf)
    (folder / "conf").write_text(
        f"[enrolment]\nauth_type = password\nauth_url = {services.url}/v3\nusername = u\n"
        "password = p\nuser_domain_name = d\nproject_name = p\nproject_domain_name = d\n"
        f"endpoint_override = {services.url}\n"
    )
    conf(["--config-file", str(folder / "conf")], project="acstor")
    files = identity_files.IdentityFiles(HOST, identity_files.files_in(folder / "identity"))
    made = enrolment.from_conf(conf, HOST, files, one_host.OneTable(hash_ring.Ring(0, ())))
    assert made is not None
    return made


def is_enrolled(host: enrolment.HostEnrolment) -> bool:
    """Return whether a host has a new certificate; refusals are the product's exceptions."""
    try:
        host._enrol(threading.Event())
    except REFUSED:
        return False
    return True


def changed(rng: random.Random) -> Change:
    """Return a change that damages a response in one way or more."""

    def change(answer: Answer, _out: Any) -> Answer:
        status, headers, body = answer
        for _ in range(rng.choice((1, 1, 2, 3))):
            match rng.randrange(6):
                case 0:
                    status = rng.choice(STATUSES)
                    headers = {**headers, "Location": rng.choice(PLACES)}
                case 1:
                    headers = {**headers, "Content-Type": rng.choice(TYPES)}
                case 2:
                    length = rng.choice((0, -1, len(body) - 1, len(body) + 1, 1 << 63, "x"))
                    headers = {**headers, "Content-Length": str(length)}
                case 3:
                    coded = rng.choice(("gzip", "deflate", "br", "x"))
                    headers = {**headers, "Content-Encoding": coded}
                case _:
                    body = bytes(mutations.mutate(body, (), rng))
        return status, headers, body

    return change


DECISION, TOKENS, VERSIONS = "POST /v1/hosts", "POST /v3/auth", "GET /v3"


@pytest.mark.parametrize("at", [DECISION, TOKENS, VERSIONS])
def test_responses_are_accepted_or_refused_with_a_named_error(
    services: Services, tmp_path: pathlib.Path, at: str
) -> None:
    services.change[at] = changed(random.Random(SEED))
    # Each host requests from the service anew.
    cases.check_some_taken(at, lambda: is_enrolled(host_of(services, tmp_path)), CASE_S)


def huge(answer: Answer, out: Any) -> None:
    """Send a body of 64 MiB without a length."""
    out.write(f"HTTP/1.1 {answer[0]} Said\r\nX-Subject-Token: t\r\n\r\n".encode())
    with contextlib.suppress(OSError):
        for _ in range(64):
            out.write(b" " * MIB)


def deep(answer: Answer, _out: Any) -> Answer:
    return answer[0], answer[1], b'{"token": ' + b"[" * (MIB // 2)


@pytest.mark.parametrize("at", [DECISION, TOKENS])
@pytest.mark.parametrize("change", [huge, deep])
def test_huge_response_is_refused_in_bounded_memory(
    services: Services, tmp_path: pathlib.Path, at: str, change: Change
) -> None:
    host = host_of(services, tmp_path)
    services.change[at] = change
    tracemalloc.start()
    assert not is_enrolled(host)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 8 * bounded_responses.MAX_BYTES


@pytest.mark.parametrize("at", [DECISION, TOKENS])
def test_trickling_response_ends_at_the_deadline(
    services: Services, tmp_path: pathlib.Path, at: str
) -> None:
    """The server is never silent for long."""

    def drip(answer: Answer, out: Any) -> None:
        out.write(f"HTTP/1.1 {answer[0]} Said\r\nContent-Length: 1000\r\n\r\n".encode())
        with contextlib.suppress(OSError):
            while not services.ended.wait(0.1):
                out.write(b" ")

    host, began_s = host_of(services, tmp_path), time.monotonic()
    bounded_responses.bound(host._api.session, within_s=1.0)
    services.change[at] = drip
    assert not is_enrolled(host)
    assert time.monotonic() - began_s < 10.0


@pytest.mark.allow_log("Nova does not answer: ")
@pytest.mark.parametrize("at", NOVA)
@pytest.mark.parametrize("is_deep", [False, True])
def test_nova_responses_are_accepted_or_refused_with_a_named_error(
    services: Services, at: str, is_deep: bool
) -> None:
    """Responses about servers, metadata and aggregates decide on hosts' rights and intervals."""
    conf = cfg.ConfigOpts()
    nova_client.register_opts(conf)
    conf([], project="acstor", default_config_files=[], default_config_dirs=[])
    for name, value in {"auth_type": "none", "endpoint_override": services.url}.items():
        conf.set_override(name, value, nova_client.GROUP.name)
    nova, found, count = nova_client.NovaClient(conf), 0, 1 if is_deep else CASES
    services.change[at] = deep if is_deep else changed(random.Random(SEED))
    for number in range(count):
        try:
            NOVA[at][1](nova)
            found += 1
        except nova_client.NovaUnreachable:
            continue
        except BaseException as e:
            e.add_note(f"answer {number} of seed {SEED}")
            raise
    assert found < count and found >= count // 40


def test_endless_redirects_are_refused(services: Services, tmp_path: pathlib.Path) -> None:
    host = host_of(services, tmp_path)
    again = {"Location": f"{services.url}/v1/hosts/h1"}
    services.change[DECISION] = lambda _answer, _out: (307, again, b"")
    assert not is_enrolled(host)
