# SPDX-License-Identifier: Apache-2.0
"""The machine's other load while a case runs."""

import os
import pathlib
import time

from evaluation.bench import harness

_BUSY = (0, 1, 2, 5, 6)
"""Fields of /proc/stat: user, nice, system, irq, softirq."""
_STEAL = 7


class Watch:
    """Measures from its start on.

    >>> with Watch() as watch:
    ...     pass
    >>> sorted(watch.seen)
    ['others_share', 'steal_share', 'took_s']
    """

    def __enter__(self) -> "Watch":
        self._began_s = time.monotonic()
        self._machine = _ticks()
        self._own_s = harness.cpu_seconds(os.getpid())
        return self

    def __exit__(self, *_: object) -> None:
        took_s = max(1e-3, time.monotonic() - self._began_s)
        busy, steal = (
            (now - before) / os.sysconf("SC_CLK_TCK")
            for now, before in zip(_ticks(), self._machine, strict=True)
        )
        own_s = harness.cpu_seconds(os.getpid()) - self._own_s
        all_s = took_s * (os.cpu_count() or 1)
        self.seen = {
            "took_s": round(took_s, 2),
            "others_share": round(min(1.0, max(0.0, busy - own_s) / all_s), 3),
            "steal_share": round(min(1.0, steal / all_s), 3),
        }
        """The duration, and the processor shares of other programs and machines.

        Other programs include children without a wait, and the kernel's network processing.
        """


def _ticks() -> tuple[int, int]:
    """Return the ticks of busy processors, and those stolen from this machine."""
    fields = pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    return sum(int(fields[n]) for n in _BUSY), int(fields[_STEAL])
