# SPDX-License-Identifier: Apache-2.0
"""Guests: each boots from one image on one host."""

from typing import Protocol

from acstor_agent.engine import chunk_ref
from acstor_simulator.model import boot_traces
from acstor_simulator.model import cloud
from acstor_simulator.model import image_delivery
from acstor_simulator.model import workloads


class GuestRun(Protocol):
    """The run that a guest belongs to."""

    def delivery_to(
        self, host: cloud.SimulatedHost, image: boot_traces.TracedImage
    ) -> image_delivery.Delivery:
        """Return the delivery of an image to a host; the first request starts it."""

    def note_boot(self, guest: "Guest", ready_s: float, booted_s: float) -> None:
        """Record the seconds until a guest's first byte, and until its boot ended."""


class Guest:
    """One guest of a run: it thinks and reads, one chunk after the other."""

    def __init__(
        self,
        host: cloud.SimulatedHost,
        image: boot_traces.TracedImage,
        task: workloads.Task,
        run: "GuestRun",
    ) -> None:
        self.image, self.used_bytes = image, task.used_bytes
        self._host, self._agenda, self._reads = host, host.world.agenda, task.reads
        self._run, self._began_s, self._first_s = run, 0.0, 0.0
        self._at = 0

    def start(self) -> None:
        """Start the boot."""
        self._began_s = self._agenda.now
        self._delivery = self._run.delivery_to(self._host, self.image)
        self._delivery.call_when_ready(self._think)

    def _think(self) -> None:
        while self._at < len(self._reads):
            think_s, chunk = self._reads[self._at]
            if think_s:
                self._agenda.schedule_after(think_s, self._read)
                return
            if not self._read_chunk(chunk):
                return
            self._advance()
        self._run.note_boot(self, self._first_s, self._agenda.now - self._began_s)

    def _read(self) -> None:
        if self._read_chunk(self._reads[self._at].chunk):
            self._go_on()

    def _read_chunk(self, chunk: chunk_ref.ChunkRef) -> bool:
        return self._delivery.read_chunk(chunk, self._go_on, self)

    def _go_on(self) -> None:
        self._advance()
        self._think()

    def _advance(self) -> None:
        if not self._at:  # thinking time is no waiting time
            self._first_s = self._agenda.now - self._began_s - self._reads[0].think_s
        self._at += 1
