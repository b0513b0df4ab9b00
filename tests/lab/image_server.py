# SPDX-License-Identifier: Apache-2.0
"""The lab's image server: nginx in the source's namespace, serving one folder.

Sent bytes are those of nginx's log, one JSON line for each finished request; the link's counter
confirms them.
"""

import dataclasses
import json
import pathlib
import re
from collections.abc import Iterable
from collections.abc import Iterator

from tests.lab import network
from tests.lab import nginx

PORT = 8080
_HTTP = """\
  log_format json escape=json '{{"host":"$remote_addr","uri":"$uri","status":$status,'
    '"body_bytes_sent":$body_bytes_sent,"content_range":"$sent_http_content_range",'
    '"method":"$request_method","seconds":$request_time}}';
  access_log {folder}/access.log json;
{files}  tcp_nopush on;
  server {{
    listen {address}:{port};
    root "{root}";
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
        """The sent range: offset of the first byte, and of the byte after the last."""
        first = re.match(r"bytes ([0-9]+)-", self.content_range)
        start = int(first[1]) if first else 0
        return start, start + self.body_bytes_sent


def unique_bytes(requests: Iterable[Request]) -> int:
    """Return the number of distinct bytes sent."""
    spans = sorted((r.uri, *r.span) for r in requests if r.status in (200, 206))
    total, last_uri, reached = 0, "", 0
    for uri, start, stop in spans:
        if uri != last_uri:
            last_uri, reached = uri, 0
        total += max(0, stop - max(start, reached))
        reached = max(reached, stop)
    return total


class ImageServer(nginx.Nginx):
    """Context manager: serves the files below ``root`` at ``url``.

    :param host: the namespace it runs in; it listens on that host's address only
    """

    def __init__(self, host: network.Host, root: pathlib.Path) -> None:
        folder = host.folder / "nginx"
        http = _HTTP.format(
            folder=folder, files=nginx.FILES, address=host.address, port=PORT, root=root
        )
        super().__init__(folder, http, PORT, host)
        self.url = f"http://{host.address}:{PORT}"

    def requests(self, uri_prefix: str = "/") -> Iterator[Request]:
        """Yield the finished requests whose path begins with ``uri_prefix``."""
        log = self.folder / "access.log"
        for line in log.read_text().splitlines():
            request = Request(**json.loads(line))
            if request.uri.startswith(uri_prefix):
                yield request

    def bytes_sent(self, uri_prefix: str = "/") -> int:
        """Return the body bytes sent by finished requests."""
        return sum(request.body_bytes_sent for request in self.requests(uri_prefix))
