# SPDX-License-Identifier: Apache-2.0
import os

from acstor_agent.mount import dead_mounts

NAME = "7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11.raw"


def test_checked_files_of_a_process_are_limited(tmp_path, monkeypatch):
    (tmp_path / "images").mkdir()
    with (tmp_path / "images" / NAME).open("w") as file:
        fds = [os.dup(file.fileno()) for _ in range(2 * dead_mounts.FILES_LIMIT)]
        checked = []
        monkeypatch.setattr(os, "statvfs", checked.append)
        assert dead_mounts.guests_on_dead_mounts(str(tmp_path)) == ()
        own = [path for path in checked if path.startswith(f"/proc/{os.getpid()}/")]
        assert len(own) == dead_mounts.FILES_LIMIT
    for fd in fds:
        os.close(fd)
