# SPDX-License-Identifier: Apache-2.0
"""Links between namespaces with delay, jitter and loss (``delay_link.c``).

Test kernels often lack netem.  Such a link replaces a veth pair: both ends are TAP devices, and
one process between them delays each frame.  Queueing disciplines (tbf) and byte counters of the
two devices work as on a veth pair.
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
    """The effect of each direction of a link on frames, which stay in order.

    :param one_way_ms: latency
    :param jitter_ms: maximum deviation from it, uniformly distributed
    :param loss: share of lost frames, independent of each other
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
    """Compile the program; return its path.

    :raises errors.Unusable: there is no compiler
    """
    program = folder / "delay_link"
    runs.tool(["gcc", "-O2", "-Wall", "-Werror", "-o", program, SOURCE, "-lpthread"])
    return program


class DelayLink:
    """Context manager: a link between new devices of two namespaces.

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
        """Start; return when both devices exist.

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
        """End the process, which removes its devices."""
        self._process.kill()
        self._process.wait(END_S)
