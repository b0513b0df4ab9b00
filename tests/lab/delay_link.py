# SPDX-License-Identifier: Apache-2.0
"""Links with delay, jitter and loss between namespaces; ``delay_link.c`` copies their frames.

Kernels of test machines often have no netem. A link with an end in each of two namespaces takes the
place of a veth pair: both ends are TAP devices, and one process between them delays each frame. So
queueing disciplines (tbf) and byte counters of the two devices work as those of a veth pair.
"""

import dataclasses
import pathlib
import subprocess

from acstor_common import errors
from tests.lab import runs

SOURCE = pathlib.Path(__file__).with_suffix(".c")
END_S = 5.0


@dataclasses.dataclass(frozen=True)
class LinkDelay:
    """What each direction of a link does to frames, which stay in order.

    :param one_way_ms: time from one end to the other
    :param jitter_ms: largest deviation from it, uniformly distributed
    :param loss: share of frames that are lost, independently
    :param seed: of jitter and loss
    """

    one_way_ms: float
    jitter_ms: float = 0.0
    loss: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.jitter_ms <= self.one_way_ms or not 0 <= self.loss < 1:
            raise ValueError(f"{self}: jitter is at most the delay, and loss is below 1")


def build(folder: pathlib.Path) -> pathlib.Path:
    """Compile the program; return it.

    :raises errors.Unusable: there is no compiler
    """
    program = folder / "delay_link"
    runs.tool(["gcc", "-O2", "-Wall", "-Werror", "-o", program, SOURCE, "-lpthread"])
    return program


class DelayLink:
    """Context manager: a link between the devices of two namespaces; it makes the devices.

    :param ends: namespace and device of each end
    """

    def __init__(
        self,
        program: pathlib.Path,
        ends: tuple[tuple[pathlib.Path, str], tuple[pathlib.Path, str]],
        delay: LinkDelay,
    ) -> None:
        numbers = (delay.one_way_ms * 1e3, delay.jitter_ms * 1e3, delay.loss * 1e6, delay.seed)
        words = [str(word) for end in ends for word in end]
        self._argv = [str(program), *words, *(str(round(number)) for number in numbers)]

    def __enter__(self) -> "DelayLink":
        """Start; return when both devices are there.

        :raises errors.Unusable: a device cannot be made
        """
        self._process = subprocess.Popen(
            self._argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline().decode()
        if said != "ready\n":
            self._process.wait(END_S)
            raise errors.Unusable("a link with delay", said.strip() or "delay_link has ended")
        return self

    def __exit__(self, *_: object) -> None:
        """End it; its devices go with it."""
        self._process.kill()
        self._process.wait(END_S)
