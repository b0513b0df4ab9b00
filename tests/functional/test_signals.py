# SPDX-License-Identifier: Apache-2.0
"""Signals to real daemons: only SIGTERM and SIGINT end one, least of all under guests."""

import os
import signal
import subprocess
import time

import pytest

from acstor_common.model import geometry
from tests.fakes import hosts
from tests.lab import local
from tests.lab import runs
from tests.lab import vaults

CHUNK = geometry.DEFAULT_CHUNK_BYTES
SENT = (
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGIO,
)
OPTIONS = {
    "acstor-decision": "[DEFAULT]\ntransport_url = fake://\n"
    "[database]\nconnection = sqlite:///{folder}/db.sqlite\n",
    "acstor-glance-listener": "[DEFAULT]\ntransport_url = fake://\n"
    "[acstor_glance]\nauth_type = none\nendpoint_override = http://127.0.0.1:9\n"
    "metrics_listen =\n",
}


def send_all(pid: int) -> None:
    for number in SENT:
        os.kill(pid, number)
        time.sleep(0.02)


@hosts.needs_fuse
def test_agent_survives_signals_under_a_guest_and_reloads(images, start):
    data = local.random_bytes(8 * CHUNK)
    image_id = images.add(data)
    agent = start()
    with agent.image_path(image_id).open("rb", buffering=0) as guest:
        assert os.pread(guest.fileno(), CHUNK, 0) == data[:CHUNK]
        pids = agent.pid, agent.worker_pid()
        text = agent.config_file.read_text()
        agent.config_file.write_text(f"[DEFAULT]\ndebug = true\n{text}")
        for pid in pids:
            send_all(pid)
        wait_for_text(agent.log, "most recent call first")  # stacks, at SIGUSR2
        for number in range(8):
            at = number * CHUNK
            os.posix_fadvise(guest.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(guest.fileno(), CHUNK, at) == data[at : at + CHUNK]
        assert (agent.pid, agent.worker_pid()) == pids
    reported = agent.log().count("SIGHUP: log files are opened and options read again")
    assert reported == 3  # by the supervisor, and twice by the worker: forwarded, and direct
    assert agent.log().count("Option DEFAULT.debug changed from [None] to [true]") == 2


@hosts.needs_fuse
def test_foreign_sigalrm_does_not_stop_an_idle_agent(start):
    agent = start()
    pids = agent.pid, agent.worker_pid()
    os.kill(agent.pid, signal.SIGALRM)
    time.sleep(0.5)
    assert (agent.pid, agent.worker_pid()) == pids


@pytest.mark.parametrize("command", ["acstor-decision", "acstor-glance-listener", "holder"])
def test_daemon_ignores_other_signals_until_sigterm(command, tmp_path):
    config, log = tmp_path / "acstor.conf", tmp_path / "log"
    if command == "holder":
        argv = ["acstor-agent-holder", tmp_path / "state"]
    else:
        config.write_text(OPTIONS[command].format(folder=tmp_path))
        argv = [command, "--config-file", config, "--log-file", log]
    if command == "acstor-decision":
        manage = ["acstor-decision-manage", "--config-file", config, "db-sync"]
        subprocess.run(manage, check=True, capture_output=True)
    with (tmp_path / "err").open("wb") as err:
        process = subprocess.Popen(argv, stderr=err)
    try:
        if command == "holder":
            runs.wait_for((tmp_path / "state" / "holder.sock").exists, 20, "the holder", str)
        else:
            wait_for_text(log.read_text, "is ready", "listening for notifications")
            log.rename(tmp_path / "log.1")
        send_all(process.pid)
        if command != "holder":
            wait_for_text(log.read_text, "SIGHUP: log files are opened")
        wait_for_text((tmp_path / "err").read_text, "most recent call first")
        assert process.poll() is None
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def test_vault_ignores_other_signals_until_sigterm(tmp_path):
    vault = vaults.Vault(tmp_path, "keeper1")
    vault.start()
    try:
        send_all(vault.process.pid)
        time.sleep(0.2)
        assert vault.process.poll() is None
        vault.process.terminate()
        assert vault.process.wait(20) == 0
    finally:
        vault.process.kill()
        vault.process.wait()


def wait_for_text(read, *texts: str) -> None:
    def said() -> str:
        try:
            return read()
        except FileNotFoundError:
            return ""

    runs.wait_for(lambda: any(text in said() for text in texts), 20, f"{texts} in a log", said)
