# SPDX-License-Identifier: Apache-2.0
"""The whole family of acstor's errors; the class says who must act.

Errors carry fields and the message is made from them.  They are translated
once, at the edge where they leave acstor (errno in the FUSE shell, an exit
status in a command).
"""


class AcstorError(Exception):
    """Root of the family; never raised itself."""


class FormatError(AcstorError):
    """Stored bytes are not what the format's document says: rebuild them from the source.

    :param what: the thing that was read, as its owner knows it (a path, an image id)
    :param offset: byte at which the fault was seen
    """

    def __init__(self, what: str, offset: int, why: str) -> None:
        super().__init__(what, offset, why)
        self.what, self.offset, self.why = what, offset, why

    def __str__(self) -> str:
        return f"{self.what}: byte {self.offset}: {self.why}"


class ChunkMapFormatError(FormatError):
    """Not a chunk map, or a damaged one, or the map of another image."""


class BootImageFormatError(FormatError):
    """Not a boot image, or a damaged one, or that of another image: it is ignored, boots go on."""


class DiskDeltaFormatError(FormatError):
    """Not the changes of a disk, or cut or altered ones: nothing that was made of them counts."""


class CheckpointFormatError(FormatError):
    """Not a manifest of a checkpoint, or one that cannot be: ask another holder for it."""


class CacheFormatError(FormatError):
    """A slab file of the public cache is damaged or of an unknown version."""


class ForeignArtefact(AcstorError):
    """An image points to an artefact that is not its own: nothing of it may be used.

    :param kind: what the artefact should be (``chunk_map``, ``boot_image``)
    """

    def __init__(self, image_id: str, kind: str, artefact_id: str, why: str) -> None:
        super().__init__(image_id, kind, artefact_id, why)
        self.image_id, self.kind, self.artefact_id, self.why = image_id, kind, artefact_id, why

    def __str__(self) -> str:
        return f"image {self.image_id}: {self.kind} {self.artefact_id} is ignored: {self.why}"


class ChunkUnavailable(AcstorError):
    """This place cannot give the bytes: ask the next one.

    :param what: what was asked for, in words (image, offset and length)
    :param where: the place that was asked (a URL, a path, a peer)
    """

    def __init__(self, what: str, where: str, why: str = "") -> None:
        super().__init__(what, where, why)
        self.what, self.where, self.why = what, where, why

    def __str__(self) -> str:
        return f"{self.what} is not available from {self.where}" + (
            f": {self.why}" if self.why else ""
        )


class ChunkMissing(ChunkUnavailable):
    """The place answered that it has not got it; asking again will not help."""


class ChunkRefused(ChunkMissing):
    """The place does not give it, though it may have it: somebody has to mend something first."""


class SourceRefused(ChunkRefused):
    """The source gives this to nobody here until an operator changes it, or how it is asked."""


class ChunkLost(ChunkMissing):
    """The source has not got it, and neither has any host of the v-node table: it is nowhere."""


class ChunkInvalid(ChunkUnavailable):
    """The bytes do not hash to the CID: drop them and distrust the place."""


class SourceUnreachable(ChunkUnavailable):
    """No answer, a refusal or a passing fault: the only class that is worth a retry."""


class SourceOverloaded(SourceUnreachable):
    """Too many wait for the place already, most of them with this one; it may answer others."""


class DeadlineExceeded(AcstorError):
    """Nobody gave the bytes in the time that the reader is ready to wait."""

    def __init__(self, what: str, deadline_s: float, why: str = "") -> None:
        super().__init__(what, deadline_s, why)
        self.what, self.deadline_s, self.why = what, deadline_s, why

    def __str__(self) -> str:
        return f"{self.what} did not arrive within {self.deadline_s:g} s" + (
            f"; last failure: {self.why}" if self.why else ""
        )


class QueueFull(AcstorError):
    """One who has most of what waits asked for more than all may have waiting together."""

    def __init__(self, who: str) -> None:
        super().__init__(who)
        self.who = who

    def __str__(self) -> str:
        return f"{self.who} has too much waiting"


class ReaderKilled(AcstorError):
    """Who waits is being ended: the answer only lets him end."""

    def __init__(self, who: str) -> None:
        super().__init__(who)
        self.who = who

    def __str__(self) -> str:
        return f"{self.who} is being ended"


class ProtocolError(AcstorError):
    """The rules of a protocol were broken; the subclass says by whom."""


class LocalProtocolError(ProtocolError):
    """We broke the rules: a bug here."""


class IllegalTransition(LocalProtocolError):
    """An event was applied in a state in which it cannot happen."""

    def __init__(self, state: str, event: str) -> None:
        super().__init__(state, event)
        self.state, self.event = state, event

    def __str__(self) -> str:
        return f"{self.event} cannot happen in state {self.state}"


class RemoteProtocolError(ProtocolError):
    """The other side broke the rules: count it and drop the connection.

    :param peer: who, as far as it is known (host id or address)
    """

    def __init__(self, peer: str, why: str) -> None:
        super().__init__(peer, why)
        self.peer, self.why = peer, why

    def __str__(self) -> str:
        return f"{self.peer} broke the protocol: {self.why}"


class OtherVersion(RemoteProtocolError):
    """The other side speaks another version of the protocol: leave it alone, it broke no rule."""

    def __str__(self) -> str:
        return f"{self.peer} cannot be understood: {self.why}"


class NotAuthenticated(AcstorError):
    """Who says so cannot be proven: use nothing of it, and tell the log who tried.

    :param what: the thing that proves nothing (a certificate, a signature, a sample)
    """

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what, self.why = what, why

    def __str__(self) -> str:
        return f"{self.what} proves nothing: {self.why}"


class NotEnrolled(AcstorError):
    """The decision service gave this host no certificate: it goes on with what it has."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return self.why


class CacheFull(AcstorError):
    """Nothing more can be stored; serving goes on without caching."""

    def __init__(self, needed_bytes: int, limit_bytes: int, why: str = "") -> None:
        super().__init__(needed_bytes, limit_bytes, why)
        self.needed_bytes, self.limit_bytes, self.why = needed_bytes, limit_bytes, why

    def __str__(self) -> str:
        return f"no space for {self.needed_bytes} bytes in a cache of {self.limit_bytes} bytes" + (
            f": {self.why}" if self.why else ""
        )


class VaultFull(AcstorError):
    """A vault has no room for a checkpoint: it keeps what it has, and takes nothing new.

    :param what: the bound that was reached, in words
    """

    def __init__(self, vault: str, what: str) -> None:
        super().__init__(vault, what)
        self.vault, self.what = vault, what

    def __str__(self) -> str:
        return f"the vault of {self.vault} is full: {self.what}"


class VaultRefused(AcstorError):
    """A vault answered that this host may not do that, or that it makes no sense."""

    def __init__(self, vault: str, why: str) -> None:
        super().__init__(vault, why)
        self.vault, self.why = vault, why

    def __str__(self) -> str:
        return f"the vault of {self.vault} refused: {self.why}"


class RingFormatError(FormatError):
    """A v-node table that cannot be used; the last good one stays in use."""


class Unusable(AcstorError):
    """The agent cannot start or go on with what it was given.

    :param what: the thing at fault (an option, a folder, a mount point)
    :param remedy: what the operator can do
    """

    def __init__(self, what: str, why: str, remedy: str = "") -> None:
        super().__init__(what, why, remedy)
        self.what, self.why, self.remedy = what, why, remedy

    def __str__(self) -> str:
        return f"{self.what}: {self.why}" + (f". {self.remedy}" if self.remedy else "")


class CheckpointRefused(Unusable):
    """The decision service does not register a checkpoint, and will not."""


class NumberInUse(AcstorError):
    """Two things would be known by one number: the second is refused, never mistaken for the first.

    :param what: the one that is refused, with its whole id
    :param owner: who has the number
    """

    def __init__(self, what: str, owner: str, number: int) -> None:
        super().__init__(what, owner, number)
        self.what, self.owner, self.number = what, owner, number

    def __str__(self) -> str:
        return f"{self.what} is refused: its number {self.number:#x} is that of {self.owner}"


class NotRaw(Unusable):
    """The bytes are of another format, whatever the image's record says: it is never served."""


class LimitExceeded(Unusable):
    """To prepare an image takes more than its uploaded bytes allow: it is not tried again."""


class QuotaExceeded(Unusable):
    """A project has not enough left of its quota: that changes when it deletes something."""


class ContentMismatch(Unusable):
    """The bytes are not those that Glance has a hash of: nothing is published of them."""


class ImageIdReused(Unusable):
    """An image's id names other bytes in Glance than those that this host shows by it."""


class BootFailed(Unusable):
    """An image has nothing that a firmware could boot: it gets no boot image by building."""


class AgentUnreachable(AcstorError):
    """The agent of this host does not answer on its control socket."""

    def __init__(self, socket_path: str, why: str) -> None:
        super().__init__(socket_path, why)
        self.socket_path, self.why = socket_path, why

    def __str__(self) -> str:
        return f"no answer from the agent at {self.socket_path}: {self.why}"


class AgentRefused(AcstorError):
    """The agent of this host answered that it cannot do what it was asked.

    :param kind: name of the class of its reason, in this module where it is one of ours
    """

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(kind, why)
        self.kind, self.why = kind, why

    def __str__(self) -> str:
        return f"the agent refused: {self.why}"


class GatewayUnreachable(AcstorError):
    """The gateway does not answer, or not to the end: what was asked of it may be asked of Glance.

    :param where: its URL
    """

    def __init__(self, where: str, why: str) -> None:
        super().__init__(where, why)
        self.where, self.why = where, why

    def __str__(self) -> str:
        return f"no answer from the gateway at {self.where}: {self.why}"


class GatewayRefused(AcstorError):
    """The gateway answered that it does not do what it was asked, or could not.

    :param status: of its answer; 200 if it had begun
    """

    def __init__(self, status: int, why: str) -> None:
        super().__init__(status, why)
        self.status, self.why = status, why

    def __str__(self) -> str:
        return f"the gateway refused ({self.status}): {self.why}"


class DecisionUnreachable(AcstorError):
    """The REST API of the decision service did not say what was asked.

    :param url: that was asked
    """

    def __init__(self, url: str, why: str) -> None:
        super().__init__(url, why)
        self.url, self.why = url, why

    def __str__(self) -> str:
        return f"no answer from {self.url}: {self.why}"


class UnsupportedNova(AcstorError):
    """This Nova is not one that acstor was checked against; Nova goes on without acstor.

    :param version: as Nova's package says it
    """

    def __init__(self, version: str, why: str) -> None:
        super().__init__(version, why)
        self.version, self.why = version, why

    def __str__(self) -> str:
        return f"Nova {self.version}: {self.why}"


class ImageServiceError(AcstorError):
    """Glance or Keystone did not do what was asked; the subclass says whether to ask again.

    :param what: what was asked for, in words
    """

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what, self.why = what, why

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


class ImageServiceUnreachable(ImageServiceError):
    """No answer, or a fault that passes: ask again later."""


class ImageServiceRefused(ImageServiceError):
    """A clear no: wrong credentials, no right, or a request that makes no sense to it."""


class ImageGone(ImageServiceError):
    """There is no such image, or none that the service user may see."""
