# SPDX-License-Identifier: Apache-2.0
"""nginx for tests and benchmarks.

All its files are in its folder, and it ends with its block.  The caller passes the configuration
but for the common part.
"""

import os
import pathlib
import shutil
import signal
import subprocess
from typing import Self

from acstor_common import errors
from tests.lab import network
from tests.lab import runs

PROGRAM = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
DEADLINE_S = 10.0
_CONFIG = """\
{user}
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log warn;
events {{ worker_connections 4096; }}
http {{
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
{http}
}}
"""
FILES = """\
  sendfile on;
  keepalive_requests 1000000;
  keepalive_timeout 600s;
  default_type application/octet-stream;
"""
"""Settings for a server of large files."""


class Nginx:
    """Context manager: runs nginx in a folder of its own.

    :param http: the block ``http`` of its configuration, without the paths of temporary files
    :param port: a port in it, to wait for
    :param host: its network namespace; None: this machine's
    """

    def __init__(
        self, folder: pathlib.Path, http: str, port: int, host: network.Host | None = None
    ) -> None:
        self.folder = folder
        self._http, self._port, self._host = http, port, host
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start it, and wait until it listens.

        :raises errors.Unusable: it is not installed, or does not start; has its output
        """
        if PROGRAM is None:
            raise errors.Unusable("nginx", "it is not installed")
        self.folder.mkdir(exist_ok=True)
        config = self.folder / "nginx.conf"
        user = "user root;" if os.geteuid() == 0 else ""
        config.write_text(_CONFIG.format(user=user, folder=self.folder, http=self._http))
        argv = [PROGRAM, "-p", self.folder, "-e", self.folder / "error.log", "-c", config]
        with (self.folder / "output").open("wb") as out:
            files = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
            if self._host is None:
                self._process = subprocess.Popen(argv, start_new_session=True, **files)
            else:
                self._process = self._host.popen(argv, **files)
        with runs.on_failure(self.stop):
            runs.wait_for(self._is_up, DEADLINE_S, "nginx", self._words)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop it, frozen or not, after which its logs are complete."""
        if self._process is None or self._process.poll() is not None:
            return
        self.resume()
        runs.end(self._process, DEADLINE_S)

    def pause(self) -> None:
        """Freeze it: connections stay, without responses."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume it after ``pause``."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: int) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, number)

    def _is_up(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise errors.Unusable("nginx", f"it has ended: {self._words()[-1000:]}")
        argv = ["ss", "-Hltn", "sport", "=", f":{self._port}"]
        return bool(runs.tool(argv) if self._host is None else self._host.run(argv))

    def _words(self) -> str:
        """Return its output."""
        files = (self.folder / "output", self.folder / "error.log")
        return "".join(file.read_text() for file in files if file.exists()).strip()
