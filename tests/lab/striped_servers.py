# SPDX-License-Identifier: Apache-2.0
"""A repository that lies on the hosts themselves: image servers that hold a stripe in N each.

On every host runs an nginx with two doors.  The *store* gives slices of files, the host's own
ones; the *gateway*, which only the host itself asks, cuts what is asked for into slices and gets
each from the host that has it, by a hash of file and offset.  So each host sees whole files, and
all of the repository's traffic goes over the links of the hosts.

All stores have the same folder; that a host asks no other one for a slice than the one that has
it is the gateway's hash, as in a distributed file system it is the client's.
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
"""A chunk: a gateway gets whole slices, so of a larger one links would carry what nobody asked for.
GlusterFS' stripes had 128, while it had stripes."""
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
    """Run the servers of all hosts until the block ends; gives each host's own address.

    :raises errors.Unusable: one does not start; says what it wrote
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
