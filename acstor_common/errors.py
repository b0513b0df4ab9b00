# SPDX-License-Identifier: Apache-2.0
"""All exceptions of acstor; edges translate them, e.g. to an errno or an exit status."""

import dataclasses
from typing import ClassVar


class AcstorError(Exception):
    """Base class of acstor's exceptions; ``text``: the message, with fields of subclasses."""

    text: ClassVar[str] = ""

    def __post_init__(self) -> None:
        self.args = tuple(vars(self).values())  # for copy and pickle

    def __str__(self) -> str:
        return self.text.format_map(vars(self)) if self.text else super().__str__()


@dataclasses.dataclass(eq=False)
class _Reasoned(AcstorError):
    """Something failed (``what``), and ``why``."""

    what: str
    why: str
    text = "{what}: {why}"


@dataclasses.dataclass(eq=False)
class FormatError(AcstorError):
    """Stored bytes of ``what`` violate their format at byte ``offset``: rebuild them."""

    what: str
    offset: int
    why: str
    text = "{what}: byte {offset}: {why}"


class ChunkMapFormatError(FormatError):
    """A chunk map is malformed, damaged or of another image."""


class BootImageFormatError(FormatError):
    """A boot image is malformed, damaged or of another image: ignore it."""


class DiskDeltaFormatError(FormatError):
    """A disk delta is malformed, cut or altered: discard its output."""


class CheckpointFormatError(FormatError):
    """A checkpoint manifest is malformed: ask another holder for it."""


class CacheFormatError(FormatError):
    """A slab file of the public cache is damaged or of an unknown version."""


@dataclasses.dataclass(eq=False)
class ForeignArtefact(AcstorError):
    """An image points to an artefact of another image: do not use the artefact."""

    image_id: str
    kind: str
    artefact_id: str
    why: str
    text = "image {image_id}: {kind} {artefact_id} is ignored: {why}"


@dataclasses.dataclass(eq=False)
class ChunkUnavailable(AcstorError):
    """A source or peer (``where``) cannot supply the bytes: try the next one."""

    what: str
    where: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.what} is not available from {self.where}" + (
            f": {self.why}" if self.why else ""
        )


class ChunkMissing(ChunkUnavailable):
    """The source or peer does not have the chunk: do not retry there."""


class ChunkRefused(ChunkMissing):
    """The source or peer refuses to serve the chunk until a fault is repaired."""


class SourceRefused(ChunkRefused):
    """The source refuses until an operator changes it or its configuration."""


class ChunkLost(ChunkMissing):
    """Neither the source nor any host of the v-node table has the chunk."""


class ChunkInvalid(ChunkUnavailable):
    """The bytes do not match the CID: drop them and distrust the sender."""


class SourceUnreachable(ChunkUnavailable):
    """No answer or a transient failure: the only class that is worth a retry."""


class SourceOverloaded(SourceUnreachable):
    """Too many requests already wait there, most of them from this caller."""


@dataclasses.dataclass(eq=False)
class DeadlineExceeded(AcstorError):
    """The bytes did not arrive within the reader's deadline."""

    what: str
    deadline_s: float
    why: str = ""

    def __str__(self) -> str:
        return f"{self.what} did not arrive within {self.deadline_s:g} s" + (
            f"; last failure: {self.why}" if self.why else ""
        )


@dataclasses.dataclass(eq=False)
class QueueFull(AcstorError):
    """The queue is full, and the caller has the largest share of it."""

    requester: str
    text = "{requester} has too many waiting requests"


@dataclasses.dataclass(eq=False)
class ReaderKilled(AcstorError):
    """The reading process is being killed: the reply only lets it exit."""

    reader: str
    text = "{reader} is being killed"


class ProtocolError(AcstorError):
    """Base class of protocol violations."""


class LocalProtocolError(ProtocolError):
    """This host violated the protocol: a bug."""


@dataclasses.dataclass(eq=False)
class IllegalTransition(LocalProtocolError):
    """An event is not allowed in the current state."""

    state: str
    event: str
    text = "{event} cannot happen in state {state}"


class RemoteProtocolError(_Reasoned, ProtocolError):
    """A peer (host ID or address) violated the protocol: count it, drop the connection."""

    text = "{what} broke the protocol: {why}"


class OtherVersion(RemoteProtocolError):
    """The peer speaks another protocol version: do not count it as a violation."""

    text = "{what} is incompatible: {why}"


class NotAuthenticated(_Reasoned):
    """Authentication of ``what`` failed: discard the message, and log the sender."""

    text = "{what} is rejected: {why}"


class NotEnrolled(AcstorError):
    """The decision service issued no certificate: continue with the old one."""


@dataclasses.dataclass(eq=False)
class CacheFull(AcstorError):
    """The cache cannot store more: serve without caching."""

    needed_bytes: int
    limit_bytes: int
    why: str = ""

    def __str__(self) -> str:
        return f"no space for {self.needed_bytes} bytes in a cache of {self.limit_bytes} bytes" + (
            f": {self.why}" if self.why else ""
        )


class VaultFull(_Reasoned):
    """A vault is full: it keeps its checkpoints and accepts no new ones."""

    text = "the vault of {what} is full: {why}"


class VaultRefused(_Reasoned):
    """A vault rejected a request as invalid or not permitted for this host."""

    text = "the vault of {what} refused: {why}"


class RingFormatError(FormatError):
    """A v-node table is invalid: keep the last good one."""


@dataclasses.dataclass(eq=False)
class Unusable(AcstorError):
    """The process cannot start or continue with this option, folder or environment (``what``)."""

    what: str
    why: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.why}" + (f". {self.remedy}" if self.remedy else "")


class CheckpointRefused(Unusable):
    """The decision service permanently rejects a checkpoint's registration."""


@dataclasses.dataclass(eq=False)
class NumberInUse(AcstorError):
    """Two objects have the same number: the second one (``what``) is rejected."""

    what: str
    owner: str
    number: int
    text = "{what} is refused: its number {number:#x} is used by {owner}"


class NotRaw(Unusable):
    """The bytes are not of the declared format: never serve the image."""


class LimitExceeded(Unusable):
    """Preparing an image exceeds the limit for its size: do not retry."""


class QuotaExceeded(Unusable):
    """A project's quota is used up: retry after the project deletes something."""


class ContentMismatch(Unusable):
    """The bytes do not match Glance's hash: publish nothing made of them."""


class ImageIdReused(Unusable):
    """Glance has other bytes under an image ID than this host serves."""


class BootFailed(Unusable):
    """An image contains nothing bootable: no boot image can be built."""


class AgentUnreachable(_Reasoned):
    """The agent of this host does not answer on its control socket."""

    text = "no answer from the agent at {what}: {why}"


@dataclasses.dataclass(eq=False)
class AgentRefused(AcstorError):
    """The agent of this host rejected a request; ``kind``: class name of its error, as here."""

    kind: str
    why: str
    text = "the agent refused: {why}"


class GatewayUnreachable(_Reasoned):
    """The gateway's answer is missing or incomplete: ask Glance instead."""

    text = "no answer from the gateway at {what}: {why}"


@dataclasses.dataclass(eq=False)
class GatewayRefused(AcstorError):
    """The gateway rejected a request, or failed; ``status`` 200: after the headers."""

    status: int
    why: str
    text = "the gateway refused ({status}): {why}"


class DecisionUnreachable(_Reasoned):
    """The decision service gave no usable answer."""

    text = "no answer from {what}: {why}"


class UnsupportedNova(_Reasoned):
    """acstor does not support this version of Nova: Nova runs without acstor."""

    text = "Nova {what}: {why}"


class ImageServiceError(_Reasoned):
    """A request to Glance or Keystone failed; the subclass tells whether to retry."""


class ImageServiceUnreachable(ImageServiceError):
    """No answer or a transient failure: retry later."""


class ImageServiceRefused(ImageServiceError):
    """Rejected: wrong credentials, no permission or an invalid request."""


class ImageGone(ImageServiceError):
    """The image does not exist or is not visible to the service user."""
