# SPDX-License-Identifier: Apache-2.0
"""A baseline that copies first, between hosts: BitTorrent, by Debian's aria2.

It replaces scp-tsunami of Nicolae 2016: each host gets the whole image before any host reads.
The source seeds; hosts seed until all are complete.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

from evaluation.bench import collective
from evaluation.bench import harness
from tests.lab import network
from tests.lab import tracker

CLIENT = "aria2c"
TRACKER_PORT = 6969
PEER_PORT = 6881
OPTIONS = (
    "--no-conf --quiet --enable-dht=false --enable-dht6=false --disable-ipv6 "
    f"--listen-port={PEER_PORT} --file-allocation=none --bt-max-peers=0 --seed-ratio=0 "
    "--allow-overwrite=true --summary-interval=0 --stop-with-process={parent}"
)
POLL_S = 0.02


def require_client() -> None:
    """Check that the client is installed.

    :raises harness.CannotRun: has the package to install
    """
    if shutil.which(CLIENT) is None:
        raise harness.CannotRun(f"{CLIENT} is not installed (Debian package aria2)")


def broadcast(net: network.Network, image: pathlib.Path, deadline_s: float) -> dict[int, float]:
    """Send ``image`` from the source to every host; return each host's seconds.

    :raises harness.CannotRun: a host did not get it in time, or got other bytes
    """
    wanted = image.read_bytes()
    torrent = net.run.folder / "image.torrent"
    url = f"http://{net.source.address}:{TRACKER_PORT}/announce"
    torrent.write_bytes(tracker.torrent(image, url))
    with contextlib.ExitStack() as stack:
        stack.enter_context(_process(net.source, _tracker(net)))
        collective.wait_listening(
            net.source, TRACKER_PORT
        )  # a client retries a missing tracker much later
        seeder = _client(torrent, image.parent, "--bt-seed-unverified=true")
        stack.enter_context(_process(net.source, seeder))
        collective.wait_listening(net.source, PEER_PORT)
        began = time.monotonic()
        folders = {}
        for number, host in enumerate(net.hosts):
            folders[number] = host.folder / "torrent"
            folders[number].mkdir()
            hook = _hook(folders[number])
            done = f"--on-bt-download-complete={hook}"
            stack.enter_context(_process(host, _client(torrent, folders[number], done)))
        took_s = _wait_complete(folders, began, deadline_s)
        for number, folder in folders.items():
            if (folder / image.name).read_bytes() != wanted:
                raise harness.CannotRun(f"host {number} received wrong bytes by {CLIENT}")
        return took_s


def _wait_complete(
    folders: dict[int, pathlib.Path], began: float, deadline_s: float
) -> dict[int, float]:
    took_s: dict[int, float] = {}
    while len(took_s) < len(folders):
        for number, folder in folders.items():
            if number not in took_s and (folder / "complete").exists():
                took_s[number] = time.monotonic() - began
        if time.monotonic() - began > deadline_s:
            raise harness.CannotRun(
                f"after {deadline_s:g} s {len(took_s)} of {len(folders)} hosts have the torrent"
            )
        time.sleep(POLL_S)
    return dict(sorted(took_s.items()))


def _tracker(net: network.Network) -> list[str | pathlib.Path]:
    return [sys.executable, "-m", tracker.__name__, net.source.address, str(TRACKER_PORT)]


def _client(torrent: pathlib.Path, folder: pathlib.Path, *more: str) -> list[str | pathlib.Path]:
    options = OPTIONS.format(parent=os.getpid()).split()
    return [CLIENT, *options, f"--dir={folder}", *more, torrent]


def _hook(folder: pathlib.Path) -> pathlib.Path:
    """Return a script that marks the download as complete."""
    script = folder / "hook"
    script.write_text(f"#!/bin/sh\n: >'{folder}/complete'\n")
    script.chmod(0o755)
    return script


@contextlib.contextmanager
def _process(host: network.Host, argv: list[str | pathlib.Path]) -> Iterator[None]:
    """Run a command on a host until the block ends."""
    process = host.popen(
        argv,
        cwd=harness.ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()
