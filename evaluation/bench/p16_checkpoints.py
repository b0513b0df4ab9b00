# SPDX-License-Identifier: Apache-2.0
"""P16: checkpoints of a writing guest: the host's sent bytes, the guest's delay.

The lab's Debian guest runs on real libvirt; a program in it writes random bytes to its disk, behind
its file system, and reports its times.  Two vaults hold the checkpoints; their folders are in
memory, since other hosts' vaults are not on this host's disk.  All ways take turns on one guest.

P16: the guest writes 5 MB/s, each chunk once, during repeated checkpoints.  The bytes sent per
copy, by the kernel's counter of a link to the vaults, over the bytes that the guest wrote.

P16b: the guest writes at full speed and flushes each MiB, over allocated clusters.  Its time while
the whole disk is read for a checkpoint at the option's rate, over the time without.  The comparison
is the time while a point in time is exposed without a reader: QEMU's own share.

P16c: the guest writes 5 MB/s.  Its longest write during checkpoints, less that without.
"""

import base64
import contextlib
import os
import pathlib
import re
import secrets
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import msgspec
from matplotlib import figure

from acstor_checkpoint import conf
from acstor_checkpoint.capture.domains import domain_xml
from acstor_checkpoint.holders import checkpoint_record
from acstor_checkpoint.vault_protocol import object_names
from acstor_common import errors
from acstor_common.model import geometry
from acstor_common.model import ids
from evaluation.bench import harness
from evaluation.bench import p12_nova
from tests.lab import checkpoints
from tests.lab import console
from tests.lab import domain
from tests.lab import guest
from tests.lab import guest_image
from tests.lab import network
from tests.lab import runs

TURNS = int(os.environ.get("ACSTOR_BENCH_TURNS", "3"))
RATE_BYTES_S = int(
    os.environ.get(
        "ACSTOR_BENCH_P16_RATE",
        next(str(o.default) for o in conf.OPTS if o.name == "checkpoint_rate_bytes_s"),
    )
)
MIB = geometry.MIB
DISK_BYTES = 4096 * MIB
BEHIND_BYTES = 2048 * MIB
"""The end of the guest's file system."""
OWN_BYTES = 256 * MIB
"""Allocated bytes of the disk, which a full checkpoint reads."""
FAST_BYTES = 256 * MIB
PACE_BYTES_S = 5_000_000
PACED_BYTES = 50 * MIB
FLUSH_BYTES = MIB
EVERY_S = 3.0
COPIES = 2
DEADLINE_S = 900.0
_WRITER = """\
use IO::Handle;
my $clock = pack 'qq', 0, 0;  # clock_gettime, monotonic: this perl has no Time::HiRes
sub now { syscall 228, 1, $clock; my ($s, $ns) = unpack 'qq', $clock; $s + $ns / 1e9 }
my ($at, $total, $rate, $flush) = @ARGV; my $piece = 65536;
open my $disk, '+<', '/dev/vda' or die; open my $random, '<', '/dev/urandom' or die;
my $bytes = ''; sysread $random, $bytes, 65536, length $bytes while length $bytes < 4194304;
my ($done, $longest, $begin) = (0, 0, now);
sysseek $disk, $at, 0;
while ($done < $total) {
  my $from = now;
  syswrite($disk, substr($bytes, int rand(4194304 - $piece)), $piece) == $piece or die;
  $done += $piece;
  $done % $flush or $disk->sync or die;
  my $took = now() - $from; $longest = $took if $took > $longest;
  my $left = $rate ? $begin + $done / $rate - now() : 0;
  select undef, undef, undef, $left if $left > 0;
}
printf "%.6f %.6f\\n", now() - $begin, $longest;
"""


class Written(NamedTuple):
    """The guest's report of its writes."""

    seconds: float
    longest_s: float


class Guest:
    """The guest, through its shell."""

    def __init__(self, made: domain.Domain, shell: console.Console) -> None:
        self.domain, self._shell = made, shell
        text = base64.b64encode(_WRITER.encode()).decode()
        for at in range(0, len(text), 512):
            self._shell.run(f"echo -n {text[at : at + 512]} >> /tmp/writer.b64")
        self._shell.run("base64 -d /tmp/writer.b64 > /tmp/writer")

    def write(self, at: int, size_bytes: int, rate_bytes_s: int, flush: int) -> Written:
        """Let it write, and wait for the end."""
        said = self._shell.run(f"perl /tmp/writer {at} {size_bytes} {rate_bytes_s} {flush}")
        return Written(*map(float, said.split()))


@harness.measures("P16", "P16b", "P16c")
def run(say: harness.Say) -> harness.Result:
    """Let a guest write with and without checkpoints, in turns."""
    with contextlib.ExitStack() as stack:
        folders = stack.enter_context(runs.Run())
        lab, it = _began(stack, folders.folder, say)
        owner = checkpoints.Host(lab.options)
        whole = _whole(it, owner, say)
        with _beyond_a_link(lab) as (net, options):
            far = checkpoints.Host(options)
            paced = [_paced_turn(it, owner, far, net, turn, say) for turn in range(TURNS)]
        fast = [_fast_turn(it, owner, turn, say) for turn in range(TURNS)]
    return result_of(whole, paced, fast)


def _began(
    stack: contextlib.ExitStack, folder: pathlib.Path, say: harness.Say
) -> tuple[checkpoints.Lab, Guest]:
    """Start vaults and the guest, whose disk has OWN_BYTES allocated."""
    image = guest_image.ensure(say)
    host = stack.enter_context(domain.libvirt_host())
    line = f"<serial type='unix'><source mode='bind' path='{folder}/console'/></serial>"
    made = domain.Domain(
        host, folder, image.raw, DISK_BYTES, memory_mib=guest.MEMORY_MIB, devices=line
    )
    stack.callback(made.close)
    memory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
    lab = checkpoints.Lab(memory / "lab", host, made.mirrors, COPIES)
    lab.options.rate_bytes_s = RATE_BYTES_S
    (folder / "sockets").mkdir()  # scratch files are on disk
    (memory / "lab" / "sockets").symlink_to(folder / "sockets")
    stack.enter_context(lab)
    lab.know(made, geometry.DEFAULT_CHUNK_BYTES)
    made.domain.create()
    link = stack.enter_context(console.connected(folder / "console"))
    shell = console.Console(link, DEADLINE_S)
    shell.ask("", re.compile("login: "))
    shell.log_in()
    it = Guest(made, shell)
    took = it.write(BEHIND_BYTES, OWN_BYTES, 0, 8 * MIB)
    say(f"the guest has written {OWN_BYTES // MIB} MiB in {took.seconds:.1f} s")
    return lab, it


def _whole(it: Guest, owner: checkpoints.Host, say: harness.Say) -> dict[str, float]:
    """Take the first checkpoint; return its cost without vaults and QEMU."""
    began_s, cpu_s = time.monotonic(), time.process_time()
    read_bytes = take(owner, it).read_bytes
    found = {
        "read_bytes": read_bytes,
        "seconds": time.monotonic() - began_s,
        "cpu_s_per_gb": (time.process_time() - cpu_s) / read_bytes * 1e9,
    }
    shown = "the first checkpoint: {read_bytes} bytes, {seconds:.1f} s, {cpu_s_per_gb:.1f} s/GB"
    say(shown.format(**found))
    return found


@contextlib.contextmanager
def _beyond_a_link(
    lab: checkpoints.Lab,
) -> Iterator[tuple[network.Network, checkpoints.Options]]:
    """Put a counted link in front of the vaults; yield a host's options for it."""
    with network.Network(hosts=1) as net, contextlib.ExitStack() as stack:
        ports = {}
        for name, port in lab.options.vaults.items():
            url = stack.enter_context(p12_nova.slow_way_to(net, port))
            ports[name] = int(url.rpartition(":")[2])
        yield net, msgspec.structs.replace(lab.options, vaults=ports)


def _paced_turn(
    it: Guest,
    owner: checkpoints.Host,
    far: checkpoints.Host,
    net: network.Network,
    turn: int,
    say: harness.Say,
) -> dict[str, Any]:
    """Let the guest write at its rate, without and with checkpoints."""
    at = BEHIND_BYTES + OWN_BYTES + 2 * turn * PACED_BYTES
    alone = it.write(at, PACED_BYTES, PACE_BYTES_S, FLUSH_BYTES)
    take(owner, it)
    before, taken = sent_by(net), Takes(lambda: take(far, it).read_bytes, EVERY_S)
    with taken:
        beside = it.write(at + PACED_BYTES, PACED_BYTES, PACE_BYTES_S, FLUSH_BYTES)
    taken.read_bytes.append(take(far, it).read_bytes)
    sent_bytes = sent_by(net) - before
    found = {
        "alone": alone._asdict(),
        "beside": beside._asdict(),
        "checkpoints": len(taken.read_bytes),
        "read_bytes": sum(taken.read_bytes),
        "sent_bytes": sent_bytes,
        "times": sent_bytes / COPIES / PACED_BYTES,
    }
    say(
        f"5 MB/s: {len(taken.read_bytes)} checkpoints, {found['times']:.3f} times the bytes; "
        f"longest write {alone.longest_s:.3f} s alone, {beside.longest_s:.3f} s beside"
    )
    return found


class Takes:
    """Context manager: takes checkpoints in sequence during the block.

    :param take: returns the number of bytes read
    :raises errors.AcstorError: one failed without being cancelled
    """

    def __init__(self, take: Callable[[], int], pause_s: float) -> None:
        self._take, self._pause_s, self._ended = take, pause_s, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.read_bytes: list[int] = []
        self._failure: errors.AcstorError | None = None

    def __enter__(self) -> "Takes":
        """Start."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop after the current one."""
        self._ended.set()
        self._thread.join(DEADLINE_S)
        self.check()

    def _run(self) -> None:
        while not self._ended.wait(self._pause_s):
            try:
                self.read_bytes.append(self._take())
            except errors.AcstorError as e:
                self._failure = self._failure or e
                return

    def give_up(self, owner: checkpoints.Host) -> None:
        """Start no further one, and cancel the current one."""
        self.check()
        self._ended.set()
        owner.ended.set()
        self._thread.join(DEADLINE_S)
        self._failure = None
        owner.ended.clear()

    def check(self) -> None:
        """Check whether one has failed."""
        if self._failure is not None:
            raise self._failure


def _fast_turn(
    it: Guest, owner: checkpoints.Host, turn: int, say: harness.Say
) -> dict[str, Written]:
    """Let the guest write at full speed: alone, beside an export, beside a checkpoint.

    Each turn starts with another way, so that a slowing machine favours none.
    """
    ways = {"alone": _nothing, "shown": _shown, "read": _read}
    found = dict.fromkeys(ways, Written(0.0, 0.0))
    for number in range(len(ways)):
        way = list(ways)[(turn + number) % len(ways)]
        with ways[way](it, owner):
            found[way] = it.write(BEHIND_BYTES, FAST_BYTES, 0, FLUSH_BYTES)
    say(
        f"{FAST_BYTES // MIB} MiB: "
        + ", ".join(f"{way} {one.seconds:.2f} s" for way, one in found.items())
    )
    return found


@contextlib.contextmanager
def _nothing(_it: Guest, _owner: checkpoints.Host) -> Iterator[None]:
    yield


@contextlib.contextmanager
def _shown(it: Guest, owner: checkpoints.Host) -> Iterator[None]:
    server = server_of(owner, it)
    bitmap = f"acstor-{secrets.token_hex(6)}"
    with owner.domains.find_domain(server).export_snapshot(bitmap, "", owner.sockets):
        yield
    owner.domains.find_domain(server).remove_bitmap(bitmap)


@contextlib.contextmanager
def _read(it: Guest, owner: checkpoints.Host) -> Iterator[None]:
    """Read the whole disk during the block, and cancel the current read at its end."""

    def again() -> int:
        drop(owner, it)
        return take(owner, it).read_bytes

    drop(owner, it)
    takes = Takes(again, 0.0)
    with takes:
        runs.wait_for(it.domain.is_busy, 60.0, "the checkpoint", str)
        time.sleep(0.5)
        yield
        takes.give_up(owner)
    owner.taker.clean_up(server_of(owner, it))


def drop(owner: checkpoints.Host, it: Guest) -> None:
    """Reset the disk's state, with another key, so that all of it is read and sent."""
    state = owner.states.load(it.domain.instance)
    if state is None:
        return
    old = object_names.VaultDisk(ids.HostId(checkpoints.OWNER), ids.ImageId(state.disk))
    for holder in owner.places.choose_holders(old.disk, COPIES, ()):
        with owner.places.client_of(holder) as client:
            client.delete_disk(old)
    state.disk, state.key, state.manifest = str(uuid.uuid4()), secrets.token_hex(32), ""
    owner.states.save(it.domain.instance, state)


def take(owner: checkpoints.Host, it: Guest) -> checkpoint_record.CheckpointRecord:
    """Take a checkpoint; return its record."""
    return owner.taker.take_checkpoint(server_of(owner, it))


def server_of(owner: checkpoints.Host, it: Guest) -> domain_xml.Server:
    """Return the guest as a server."""
    return next(s for s in owner.domains.list_servers().servers if s.instance == it.domain.instance)


def sent_by(net: network.Network) -> int:
    """Return the bytes sent by the host to the vaults."""
    return net.link_bytes()[net.hosts[0].name].sent


def result_of(
    whole: dict[str, float], paced: list[dict[str, Any]], fast: list[dict[str, Written]]
) -> harness.Result:
    """Return the figures of all turns."""
    values: dict[str, harness.Value] = {
        "P16": statistics.median(turn["times"] for turn in paced),
        "P16b": statistics.median(t["read"].seconds / t["alone"].seconds for t in fast),
        "P16c": statistics.median(
            turn["beside"]["longest_s"] - turn["alone"]["longest_s"] for turn in paced
        ),
    }
    details = {
        "rate_bytes_s": RATE_BYTES_S,
        "load": os.getloadavg(),
        "whole": whole,
        "paced": paced,
        "fast": [{way: one._asdict() for way, one in turn.items()} for turn in fast],
        "shown_over_alone": statistics.median(
            turn["shown"].seconds / turn["alone"].seconds for turn in fast
        ),
    }
    return harness.Result(values, details, lambda picture: draw(picture, fast))


def draw(picture: figure.Figure, fast: list[dict[str, Written]]) -> None:
    """Draw the times of the writes in each way."""
    axes = picture.subplots()
    ways = list(fast[0])
    axes.boxplot([[turn[way].seconds for turn in fast] for way in ways], tick_labels=ways)
    axes.set(ylabel=f"seconds for {FAST_BYTES // MIB} MiB, flushed", ylim=(0, None))
