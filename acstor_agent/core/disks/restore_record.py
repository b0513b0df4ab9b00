# SPDX-License-Identifier: Apache-2.0
"""Record of a restored disk (doc/source/format/recovery.rst): holders of chunks, and the key."""

from typing import Annotated
from typing import Any
from typing import Final
from typing import NamedTuple

import msgspec

from acstor_agent.core.disks import disk_header
from acstor_common import errors
from acstor_common.model import addresses
from acstor_common.model import ids
from acstor_common.model import text_constraints

VERSION: Final = 1
MAX_BYTES: Final = 64 * 1024
MAX_HOLDERS: Final = 16


class CheckpointHolder(NamedTuple):
    """A host that keeps a checkpoint."""

    host: ids.HostId
    address: str  # of its vault, ``host:port``


class RestoreRecord(NamedTuple):
    """The checkpoint of a restored disk, and the holders of its chunks."""

    checkpoint_id: disk_header.DiskId  # assigned by the decision service; equal to the disk's ID
    instance_id: ids.ImageId
    image_id: ids.ImageId
    owner: ids.HostId
    vault_disk: ids.ImageId  # ID of the disk in the holders' vaults
    manifest_name: bytes
    holders: tuple[CheckpointHolder, ...]
    key: bytes  # opens all that the holders have of the disk; empty when no chunk is missing

    @property
    def is_complete(self) -> bool:
        """Return whether all chunks of the checkpoint are on this host."""
        return not self.key


class _Kept(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    checkpoint_id: str
    instance_id: str
    image_id: str
    owner: str
    vault_disk: str
    manifest_name: text_constraints.Hex64
    holders: Annotated[list[tuple[str, str]], msgspec.Meta(max_length=MAX_HOLDERS)]
    key: text_constraints.OptionalHex64


_decoder = msgspec.json.Decoder(_Kept)


def restore_record_of(**fields: Any) -> RestoreRecord:
    """Return a record from a client's or a file's fields."""
    try:
        kept = msgspec.convert({"version": VERSION, **fields}, _Kept)
    except msgspec.ValidationError as e:
        raise ValueError(str(e)) from e
    return RestoreRecord(
        disk_header.parse_disk_id(kept.checkpoint_id),
        ids.parse_image_id(kept.instance_id),
        ids.parse_image_id(kept.image_id),
        ids.parse_host_id(kept.owner),
        ids.parse_image_id(kept.vault_disk),
        bytes.fromhex(kept.manifest_name),
        tuple(_holder(host, address) for host, address in kept.holders),
        bytes.fromhex(kept.key),
    )


def _holder(host: str, address: str) -> CheckpointHolder:
    addresses.parse_remote(address)
    return CheckpointHolder(ids.parse_host_id(host), address)


def pack(recovery: RestoreRecord) -> bytes:
    """Return the bytes of the file."""
    fields = recovery._asdict()
    fields |= {name: fields[name].hex() for name in ("manifest_name", "key")}
    return msgspec.json.encode({"version": VERSION, **fields})


def unpack(raw: bytes, what: str) -> RestoreRecord:
    """Return the record in the bytes of the file ``what``, or raise FormatError."""
    try:
        kept = _decoder.decode(raw)
        if kept.version != VERSION:
            raise ValueError(f"version {kept.version} is unknown, {VERSION} expected")
        return restore_record_of(**msgspec.structs.asdict(kept))
    except (ValueError, msgspec.DecodeError, TypeError) as e:
        raise errors.FormatError(what, 0, str(e)) from e
