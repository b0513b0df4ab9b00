# SPDX-License-Identifier: Apache-2.0
"""Cinder's NFS driver with volumes that are available before their image is copied.

A new volume of an image is a qcow2 overlay on the image's base file (:mod:`base_files`), which at
first leads to the mirror of the host that opens the volume.  cinder-volume then copies the image to
the share, once for all volumes; from then on they need neither acstor nor the image.
"""

import pathlib
import threading
from typing import Any

from cinder import coordination
from cinder import exception
from cinder import interface
from cinder.image import image_utils
from cinder.volume.drivers import nfs
from oslo_concurrency import processutils
from oslo_config import cfg
from oslo_log import log as logging

import acstor_common.service.conf
from acstor_cinder import base_files
from acstor_common import errors
from acstor_common.image import image_record
from acstor_common.util import supervision
from acstor_common.wire import control_client
from acstor_common.wire import control_wire

CONF = cfg.CONF
LOG = logging.getLogger(__name__)

HEAD_BYTES = 64 * 1024
ATTACHING = frozenset(("reserved", "attaching", "in-use"))
"""States of a volume that Nova attaches: it reads overlays.  Cinder's own backups and migrations
would copy the overlay's file without its base."""
_FAULTS = (
    *(errors.AcstorError, exception.CinderException, processutils.ProcessExecutionError),
    *(OSError, ValueError),
)


def why_downloaded(meta: dict[str, Any]) -> str:
    """Return why Cinder must download an image itself; "" if not."""
    properties = meta.get("properties", {})
    if CONF.verify_glance_signatures != "disabled" and properties.get("img_signature"):
        return "its signature is to be verified"
    image = image_record.Image.from_record({**properties, **meta})
    if image.is_encrypted or meta.get("cinder_encryption_key_id"):
        return "it is encrypted"
    return image_record.why_not_served(image)


@interface.volumedriver
class MirrorNfsDriver(nfs.NfsDriver):  # type: ignore[misc]  # Cinder has no type hints
    """The driver; its options are those of Cinder's NFS driver and of the group [acstor]."""

    VERSION = "1.0.0"
    _copier: threading.Thread | None = None

    def do_setup(self, context: Any) -> None:
        """Mount the shares; register the options shared with the agent."""
        acstor_common.service.conf.register_opts(CONF)
        super().do_setup(context)

    def clone_image(
        self, context: Any, volume: Any, image_location: Any, image_meta: Any, image_service: Any
    ) -> tuple[dict[str, Any] | None, bool]:
        """Make a volume on an image's base file, if acstor serves the image.

        Return Cinder's update, and whether the volume was made; if not, Cinder downloads the image.
        """
        try:
            image = self._attach(image_meta)
            self._ensure_shares_mounted()
            volume.provider_location = self._find_share(volume)
            self._make_overlay(volume, image)
        except _FAULTS as e:
            LOG.warning("image %s: Cinder downloads it: %s", image_meta.get("id"), e)
            return None, False
        self._start_copies()
        return {"provider_location": volume.provider_location}, True

    def _attach(self, meta: dict[str, Any]) -> image_record.Image:
        if why := why_downloaded(meta):
            raise errors.Unusable(f"image {meta['id']}", why)
        image = image_record.Image.from_record(meta)
        os_hash = image.os_hash
        request = control_wire.AttachImage(image.id, HEAD_BYTES, os_hash.algo, os_hash.value.hex())
        stored = control_client.send(CONF.acstor.control_socket, request)
        recorded = image.disk_format, image.size_bytes
        if not image.is_convertible and recorded != (stored["disk_format"], stored["stored_bytes"]):
            raise errors.Unusable(f"image {image.id}", f"its record differs from its map: {stored}")
        return image

    def _make_overlay(self, volume: Any, image: image_record.Image) -> None:
        path, share = self.local_path(volume), self._share(volume)
        base = base_files.base_name(image.id, image.os_hash.value)
        mirror = self._mirror_of(base)
        image_utils.check_virtual_size(self._size_of(mirror), volume.size, image.id)
        with self._lock(base):
            link = base_files.add_user(share, volume.name, base, mirror)
        try:
            words = ("-f", "qcow2", "-b", link, "-F", "raw", path, f"{volume.size}G")
            self._execute("qemu-img", "create", *words, run_as_root=self._execute_as_root)
            self._set_rw_permissions(path)
            self._note_format(volume, "qcow2")
        except Exception:
            self._delete(path)
            self._release(volume)
            raise

    def _mirror_of(self, base: str) -> pathlib.Path:
        return base_files.mirror_of(base, pathlib.Path(CONF.acstor.mount_point))

    def _size_of(self, path: pathlib.Path) -> int:
        # A process, because a look-up may wait for the agent.
        words = ("stat", "-L", "-c", "%s", str(path))
        return int(self._execute(*words, run_as_root=self._execute_as_root)[0])

    def _share(self, volume: Any) -> pathlib.Path:
        return pathlib.Path(self._local_volume_dir(volume))

    def _is_overlay(self, volume: Any) -> bool:
        return base_files.base_of(self._share(volume), volume.name) is not None

    def _lock(self, name: str) -> Any:
        return coordination.COORDINATOR.get_lock(name)

    def _note_format(self, volume: Any, name: str) -> None:
        volume.admin_metadata["format"] = name
        with volume.obj_as_admin():
            volume.save()

    def _release(self, volume: Any) -> None:
        share = self._share(volume)
        base = base_files.base_of(share, volume.name)
        if base is not None:
            with self._lock(base):
                base_files.remove_user(share, volume.name)

    def delete_volume(self, volume: Any) -> None:
        """Delete a volume, and its base file if no other volume uses it."""
        super().delete_volume(volume)
        if volume.provider_location:
            self._release(volume)

    def copy_image_to_volume(self, context: Any, volume: Any, *args: Any, **kwargs: Any) -> None:
        """Download an image to a volume; an overlay becomes raw by this."""
        super().copy_image_to_volume(context, volume, *args, **kwargs)
        if self._is_overlay(volume):
            self._note_format(volume, "raw")
            self._release(volume)

    def _create_cloned_volume(self, volume: Any, src_vref: Any, context: Any) -> dict[str, Any]:
        """Clone a volume by a full copy, which has the backend's format, not the source's."""
        update: dict[str, Any] = super()._create_cloned_volume(volume, src_vref, context)
        self._note_format(volume, self.format)
        return update

    def initialize_connection(self, volume: Any, connector: Any) -> dict[str, Any]:
        """Return how Nova attaches a volume; refuse to attach an overlay to Cinder itself."""
        if self._is_overlay(volume) and volume.status not in ATTACHING:
            raise exception.InvalidVolume(
                reason=f"volume {volume.id} shares the base file of its image, which backups and "
                "migrations of Cinder do not copy. Clone it (openstack volume create --source), "
                "and use the clone"
            )
        found: dict[str, Any] = super().initialize_connection(volume, connector)
        return found

    def _update_volume_stats(self) -> None:
        """Update the backend's capacity; every minute, so that missing copies are made."""
        super()._update_volume_stats()
        self._start_copies()

    def _start_copies(self) -> None:
        if self._copier is None or not self._copier.is_alive():
            self._copier = supervision.start_once("copies of images", self._copy_images)

    def _copy_images(self) -> None:
        """Copy all images to the shares that have none yet; a failed one is tried again later."""
        for name in self._mounted_shares:
            share = pathlib.Path(self._get_mount_point_for_share(name))
            for base in base_files.list_uncopied(share):
                try:
                    self._copy_image(share, base)
                except Exception as e:  # of Cinder, of qemu-img, of the share
                    LOG.warning("%s is not copied to %s yet: %s", base, name, e)

    def _copy_image(self, share: pathlib.Path, base: str) -> None:
        copying = self._lock(f"copy-{base}")
        if not copying.acquire(blocking=False):
            return  # another cinder-volume of this backend copies it
        try:
            mirror, copy = self._mirror_of(base), base_files.copy_path(share, base)
            copy.unlink(missing_ok=True)  # of an interrupted copy, or a foreign link
            size_bytes = self._size_of(mirror)
            image_utils.convert_image(
                str(mirror), str(copy), "raw", src_format="raw", run_as_root=self._execute_as_root
            )
            with self._lock(base):
                is_used = base_files.finish_copy(share, base, size_bytes)
        finally:
            copying.release()
        LOG.info("%s is copied to %s%s", base, share, "" if is_used else ", and unused")
