# SPDX-License-Identifier: Apache-2.0
"""The image server of the lab: nginx in the source's namespace, serving one folder.

The rule: what it says it has sent is what nginx logged, one JSON line for each
request when that request is over; the link's own counter is the second witness.
"""

import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
from collections.abc import Iterable
from collections.abc import Iterator

from acstor_common import errors
from tests.lab import network
from tests.lab import runs

PORT = 8080
START_DEADLINE_S = 10.0
_CONFIG = """\
user root;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 4096; }}
http {{
  log_format json escape=json '{{"host":"$remote_addr","uri":"$uri","status":$status,'
    '"body_bytes_sent":$body_bytes_sent,"content_range":"$sent_http_content_range",'
    '"method":"$request_method","seconds":$request_time}}';
  access_log {folder}/access.log json;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  sendfile on;
  tcp_nopush on;
  keepalive_requests 1000000;
  keepalive_timeout 600s;
  default_type application/octet-stream;
  server {{
    listen {address}:{port};
    root "{root}";
  }}
}}
"""


@dataclasses.dataclass(frozen=True)
class Request:
    """One line of the access log."""

    host: str
    uri: str
    status: int
    body_bytes_sent: int
    content_range: str
    method: str
    seconds: float

    @property
    def span(self) -> tuple[int, int]:
        """First byte and the byte after the last that were sent, as offsets in the file."""
        first = re.match(r"bytes ([0-9]+)-", self.content_range)
        start = int(first[1]) if first else 0
        return start, start + self.body_bytes_sent


def unique_bytes(requests: Iterable[Request]) -> int:
    """Return how many different bytes of files were sent: those sent twice count once."""
    spans = sorted((r.uri, *r.span) for r in requests if r.status in (200, 206))
    total, last_uri, reached = 0, "", 0
    for uri, start, stop in spans:
        if uri != last_uri:
            last_uri, reached = uri, 0
        total += max(0, stop - max(start, reached))
        reached = max(reached, stop)
    return total


class ImageServer:
    """Context manager: serves the files below ``root`` at ``url``.

    :param host: the namespace it runs in; listens on that host's address only
    """

    def __init__(self, host: network.Host, root: pathlib.Path) -> None:
        self._host, self._root = host, root
        self._folder = host.folder / "nginx"
        self.url = f"http://{host.address}:{PORT}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "ImageServer":
        """Start nginx and wait until it listens.

        :raises errors.Unusable: it does not start; says what it wrote
        """
        self._folder.mkdir()
        config = self._folder / "nginx.conf"
        config.write_text(
            _CONFIG.format(
                folder=self._folder, address=self._host.address, port=PORT, root=self._root
            )
        )
        argv: list[str | pathlib.Path] = [
            "nginx",
            "-p",
            self._folder,
            "-e",
            self._folder / "error.log",
            "-c",
            config,
        ]
        with (self._folder / "output").open("wb") as out:
            self._process = self._host.popen(
                [*argv, "-g", "daemon off;"], stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        runs.wait_for(self._is_up, START_DEADLINE_S, "nginx", self._words)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.resume()
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(START_DEADLINE_S)

    def _words(self) -> str:
        """Return what nginx wrote."""
        files = (self._folder / "output", self._folder / "error.log")
        return "".join(file.read_text() for file in files if file.exists()).strip()

    def _is_up(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise errors.Unusable("nginx", f"it has ended: {self._words()[-1000:]}")
        return f"{self._host.address}:{PORT}" in self._host.run(["ss", "-Hltn"])

    def pause(self) -> None:
        """Freeze the server: connections stay, no answer comes."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after ``pause``."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: int) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, number)

    def requests(self, uri_prefix: str = "/") -> Iterator[Request]:
        """Yield the finished requests of files whose path begins with ``uri_prefix``."""
        log = self._folder / "access.log"
        for line in log.read_text().splitlines():
            request = Request(**json.loads(line))
            if request.uri.startswith(uri_prefix):
                yield request

    def bytes_sent(self, uri_prefix: str = "/") -> int:
        """Return the bytes of files, headers not counted, that finished requests have sent."""
        return sum(request.body_bytes_sent for request in self.requests(uri_prefix))
