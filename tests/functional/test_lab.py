# SPDX-License-Identifier: Apache-2.0
"""The lab itself: real namespaces, links, nginx, and complete removal afterwards."""

import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import pytest

from acstor_common import errors
from tests.fakes import tcp_rate
from tests.lab import agents
from tests.lab import forked_commands
from tests.lab import image_server
from tests.lab import network
from tests.lab import runs

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")


@pytest.mark.parametrize("direction", ["uplink", "downlink"])
def test_tcp_reaches_the_rate_of_the_slowest_link(direction: str) -> None:
    with network.Network(hosts=2, link_mbit=100) as net:
        sender, receiver = net.hosts
        net.shape(sender if direction == "uplink" else receiver, 25)
        # 1448 of 1514 bytes are payload; a busy machine is slower, and then sends a full bucket
        burst_mbit = network.BURST_BYTES * 8 / 1e6
        mbit = tcp_rate.measure_mbit(sender, receiver, length_s=3.3)
        assert 0.85 * 25 < mbit < 0.96 * 25 + burst_mbit / 3.0


def test_link_counters_count_sent_bytes_by_host() -> None:
    with network.Network(hosts=2) as net:
        before = net.link_bytes()
        tcp_rate.measure_mbit(net.hosts[0], net.hosts[1])
        after = net.link_bytes()
        sent, received = (after[name] - before[name] for name in ("h1", "h2"))
        assert sent.sent > 1_000_000
        assert sent.sent == pytest.approx(received.received, rel=0.01)
        assert after["source"].sent < 10_000


def test_hosts_have_permanent_neighbour_entries() -> None:
    with network.Network(hosts=2) as net:
        tcp_rate.measure_mbit(net.hosts[0], net.hosts[1])
        for host in (net.source, *net.hosts):
            entries = json.loads(host.run(["ip", "-json", "neigh", "show", "dev", "eth0"]))
            assert {entry["dst"] for entry in entries} == {
                other.address for other in (net.source, *net.hosts) if other is not host
            }
            assert {tuple(entry["state"]) for entry in entries} == {("PERMANENT",)}


@pytest.fixture
def new_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have fork servers of this environment, whatever that of earlier tests was."""
    monkeypatch.setattr(forked_commands, "_server", functools.cache(forked_commands.ForkServer))


@pytest.mark.usefixtures("new_servers")
def test_forked_agent_is_inside_its_host() -> None:
    with network.Network(hosts=1) as net:
        (host,) = net.hosts
        with agents.Agent(host, "http://none.invalid/") as agent:
            agent.wait_ready()
            assert "forked_commands" in pathlib.Path(f"/proc/{agent.pid}/cmdline").read_text()
            assert {agent.pid, agent.worker_pid()} <= {*runs.processes_inside([host.namespace])}


def test_forked_command_enters_all_namespaces_of_a_machine(tmp_path: pathlib.Path) -> None:
    inside = ["unshare", "--mount", "--uts", "sleep", "60"]
    with subprocess.Popen(inside) as machine:
        try:
            own = [pathlib.Path(f"/proc/{machine.pid}/ns", kind) for kind in ("uts", "mnt")]
            ours = [os.readlink(f"/proc/self/ns/{path.name}") for path in own]
            wait = lambda: ours != [os.readlink(path) for path in own]  # noqa: E731
            runs.wait_for(wait, 10.0, "the namespaces", str)
            server = forked_commands.ForkServer(forked_commands.AGENT)
            with (tmp_path / "log").open("wb") as out:
                fork = server.start(["--help"], {}, out, namespaces=own)
            assert fork.wait(20.0) == 0
            assert "Run the agent of this host." in (tmp_path / "log").read_text()
        finally:
            machine.kill()


def test_image_server_counts_the_same_bytes_as_the_link(tmp_path: pathlib.Path) -> None:
    (tmp_path / "image.raw").write_bytes(os.urandom(4_000_000))
    with (
        network.Network(hosts=2) as net,
        image_server.ImageServer(net.source, tmp_path) as server,
    ):
        before = net.link_bytes()["source"]
        for host in net.hosts:
            for part in ("0-999999", "500000-1999999"):
                host.run(["curl", "-sf", "-o", "/dev/null", "-r", part, f"{server.url}/image.raw"])
        link = net.link_bytes()["source"] - before
        assert server.bytes_sent("/image") == 5_000_000
        assert server.bytes_sent("/other") == 0
        assert image_server.unique_bytes(server.requests()) == 2_000_000
        assert link.sent == pytest.approx(5_000_000, rel=0.05)


def test_exception_leaves_no_namespace_process_or_folder() -> None:
    with pytest.raises(ZeroDivisionError), network.Network(hosts=1) as net:
        sleeper = net.hosts[0].popen(["sleep", "1000"])
        assert len(runs.namespaces(net.run.tag)) == 3
        raise ZeroDivisionError
    assert runs.namespaces(net.run.tag) == []
    assert not net.run.folder.exists()
    assert sleeper.wait(5) == -signal.SIGKILL


OWNER = textwrap.dedent("""
    import subprocess, time
    from tests.lab import network
    with network.Network(hosts=1) as net:
        point = net.run.folder / "mounted here"
        point.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "lab", point], check=True)
        net.hosts[0].popen(["sleep", "1000"])
        print(net.run.tag, flush=True)
        time.sleep(1000)
""")


def left_of(tag: str) -> list[str]:
    """Return the remains of a run."""
    folder = runs.RUNS_FOLDER / tag
    return [
        *runs.namespaces(tag),
        *runs.mounts_beneath(folder),
        *([tag] if folder.exists() else []),
    ]


def owner_ended_by(number: signal.Signals) -> str:
    """Let another process make a network, end it by a signal, and return the run's tag."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=runs.CHECKOUT,
    ) as owner:
        assert owner.stdout is not None
        tag = owner.stdout.readline().strip()
        assert len(left_of(tag)) == 5
        owner.send_signal(number)
        owner.wait(20)
    return tag


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_leaves_nothing_behind(number: signal.Signals) -> None:
    assert left_of(owner_ended_by(number)) == []


def test_next_run_removes_only_the_remains_of_a_killed_one() -> None:
    with network.Network(hosts=1) as living:
        tag = owner_ended_by(signal.SIGKILL)
        sleepers = runs.processes_inside(runs.namespaces(tag))
        assert len(left_of(tag)) == 5
        assert len(sleepers) == 1
        with network.Network(hosts=1):
            assert left_of(tag) == []
            assert not pathlib.Path(f"/proc/{sleepers[0]}/ns/net").exists()
        assert len(runs.namespaces(living.run.tag)) == 3


def test_failed_network_leaves_nothing_behind() -> None:
    net = network.Network(hosts=1, prefix="300.0.0.")
    with pytest.raises(errors.Unusable, match=r"300\.0\.0\.254/24"):
        net.__enter__()
    assert left_of(net.run.tag) == []
