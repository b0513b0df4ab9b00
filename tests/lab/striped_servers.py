# SPDX-License-Identifier: Apache-2.0
"""A repository striped over the hosts' image servers, with 1/N of the data each.

Each host runs an nginx with two ports.  The *store* serves the host's own slices of files.  The
*gateway* serves only its host: it splits a request into slices and gets each from the host
given by a hash of file and offset.  So each host sees whole files, and all of the repository's
traffic uses the links of the hosts.

All stores have the same folder; only the gateways' hash makes each slice's host unique, as the
clients' hash does in a distributed file system.
"""

import contextlib
import pathlib
from collections.abc import Iterator
from collections.abc import Sequence

from acstor_common.model import geometry
from tests.lab import network
from tests.lab import nginx

STORE_PORT, GATEWAY_PORT = 8091, 8090
SLICE_KIB = geometry.DEFAULT_CHUNK_BYTES // geometry.KIB
"""A chunk: gateways fetch whole slices, so larger ones add unrequested traffic.

GlusterFS had stripes of 128 KiB, while it supported them.
"""
_HTTP = """\
  access_log off;
{files}  upstream stores {{
    hash "$uri$slice_range" consistent;
{stores}
    keepalive 64;
  }}
  server {{ listen {address}:{store}; root "{root}"; }}
  server {{
    listen {address}:{gateway};
    location / {{
      slice {slice_kib}k;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Range $slice_range;
      proxy_buffers 16 32k;
      proxy_pass http://stores;
    }}
  }}
"""


@contextlib.contextmanager
def running(hosts: Sequence[network.Host], root: pathlib.Path) -> Iterator[list[str]]:
    """Run the servers of all hosts for the block; yield each host's own address.

    :raises errors.Unusable: one does not start; has its output
    """
    stores = "\n".join(f"    server {host.address}:{STORE_PORT};" for host in hosts)
    with contextlib.ExitStack() as stack:
        for host in hosts:
            stack.enter_context(_server(host, root, stores))
        yield [f"http://{host.address}:{GATEWAY_PORT}" for host in hosts]


def _server(host: network.Host, root: pathlib.Path, stores: str) -> nginx.Nginx:
    http = _HTTP.format(
        files=nginx.FILES,
        stores=stores,
        root=root,
        address=host.address,
        store=STORE_PORT,
        gateway=GATEWAY_PORT,
        slice_kib=SLICE_KIB,
    )
    return nginx.Nginx(host.folder / "stripes", http, GATEWAY_PORT, host)
