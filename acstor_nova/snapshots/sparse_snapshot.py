# SPDX-License-Identifier: Apache-2.0
"""Makes complete snapshots; a :mod:`hole_map` lets qemu-img skip the mirror's zeros."""

import contextlib
import json
import os
from collections.abc import Callable

from acstor_common import errors
from acstor_common.disks import local_file
from acstor_common.model import ids
from acstor_common.wire import control_wire
from acstor_nova import host_context
from acstor_nova import mirror_link
from acstor_nova.snapshots import delta_snapshot
from acstor_nova.snapshots import hole_map

Extract = Callable[[str, str, str, str], None]


def extract_image(
    host: host_context.HostContext,
    stock: Extract,
    disk_path: str,
    source_fmt: str,
    out_path: str,
    dest_fmt: str,
) -> None:
    """Write the image of an idle disk by Nova's ``stock``, or send its delta."""
    if delta_snapshot.send_delta(disk_path):
        return
    base = local_file.backing_of(disk_path) if source_fmt == "qcow2" else None
    image_id = mirror_link.image_of(base) if base else None
    if base is None or image_id is None:
        return stock(disk_path, source_fmt, out_path, dest_fmt)
    holes = f"{out_path}.holes"
    try:
        _write_map(host, image_id, holes)
        stock(_with_holes(disk_path, holes, base), source_fmt, out_path, dest_fmt)
    except Exception as e:
        why = f"a snapshot could not be made without reading its zeros: {e}"
        host.record_fallback(image_id, _reason(e), why)
        stock(disk_path, source_fmt, out_path, dest_fmt)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(holes)


def _reason(e: Exception) -> control_wire.Fallback:
    if isinstance(e, errors.AgentUnreachable):
        return control_wire.Fallback.AGENT_UNREACHABLE
    return control_wire.Fallback.HOLES_UNKNOWN


def _write_map(host: host_context.HostContext, image_id: ids.ImageId, path: str) -> None:
    zero_map = host.agent.zero_map(image_id)
    with open(path, "xb") as file:
        hole_map.write_hole_map(file, zero_map.cut, zero_map.is_zero)


def _with_holes(disk_path: str, holes: str, base: str) -> str:
    data = {"driver": "file", "filename": base, "cache": {"direct": True}}
    backing = {"driver": "qcow2", "file": _file(holes), "data-file": data}
    return "json:" + json.dumps({"driver": "qcow2", "file": _file(disk_path), "backing": backing})


def _file(path: str) -> dict[str, str]:
    return {"driver": "file", "filename": path}
