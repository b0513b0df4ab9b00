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
import signal
import subprocess
from collections.abc import Iterator
from collections.abc import Sequence

from acstor_common import errors
from tests.lab import network
from tests.lab import runs

STORE_PORT, GATEWAY_PORT = 8091, 8090
SLICE_KIB = 128
"""GlusterFS' stripes had as much, while it had stripes."""
START_DEADLINE_S = 10.0
_CONFIG = """\
user root;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  sendfile on;
  keepalive_requests 1000000;
  keepalive_timeout 600s;
  default_type application/octet-stream;
  upstream stores {{
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
}}
"""


@contextlib.contextmanager
def running(hosts: Sequence[network.Host], root: pathlib.Path) -> Iterator[list[str]]:
    """Run the servers of all hosts until the block ends; gives each host's own address.

    :raises errors.Unusable: one does not start; says what it wrote
    """
    with contextlib.ExitStack() as stack:
        stores = "\n".join(f"    server {host.address}:{STORE_PORT};" for host in hosts)
        for host in hosts:
            stack.enter_context(_server(host, root, stores))
        for host in hosts:
            _wait_listening(host)
        yield [f"http://{host.address}:{GATEWAY_PORT}" for host in hosts]


@contextlib.contextmanager
def _server(host: network.Host, root: pathlib.Path, stores: str) -> Iterator[None]:
    folder = host.folder / "stripes"
    folder.mkdir()
    config = folder / "nginx.conf"
    config.write_text(
        _CONFIG.format(
            folder=folder,
            stores=stores,
            root=root,
            address=host.address,
            store=STORE_PORT,
            gateway=GATEWAY_PORT,
            slice_kib=SLICE_KIB,
        )
    )
    argv: list[str | pathlib.Path] = ["nginx", "-p", folder, "-e", folder / "error.log"]
    with (folder / "output").open("wb") as out:
        process = host.popen(
            [*argv, "-c", config, "-g", "daemon off;"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(START_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_listening(host: network.Host) -> None:
    def is_up() -> bool:
        if (host.folder / "stripes" / "output").read_text().strip():
            raise errors.Unusable("nginx", _words(host))
        return f"{host.address}:{GATEWAY_PORT}" in host.run(["ss", "-Hltn"])

    runs.wait_for(is_up, START_DEADLINE_S, f"nginx of {host.name}", lambda: _words(host))


def _words(host: network.Host) -> str:
    files = [host.folder / "stripes" / name for name in ("output", "error.log")]
    return "".join(file.read_text() for file in files if file.exists()).strip()
