# SPDX-License-Identifier: Apache-2.0
"""Nova's image backend ``acstor``: a qcow2 disk on a mirror instead of a download.

Nova's qcow2 backend can use these disks. If acstor, the image or the agent has a fault, Nova
downloads the image. :mod:`acstor_nova.registration` derives the backend from :class:`MirrorBase`.
"""

import contextlib
import functools
import logging
import os
from collections.abc import Callable
from typing import Any

from acstor_common import errors
from acstor_common.disks import local_file
from acstor_common.formats import chunk_map
from acstor_common.image import image_record
from acstor_common.service import tracing
from acstor_common.wire import control_wire
from acstor_nova import boot_profile
from acstor_nova import cache_first
from acstor_nova import host_context
from acstor_nova import mirror_link

LOG = logging.getLogger(__name__)

CACHEMODE = "writeback"
"""Cache mode of root disks on a mirror, unless [libvirt] disk_cachemodes sets one.

Instances share the page cache. libvirt rejects native I/O with it, so QEMU uses threads.
"""
PRECACHE_TIMEOUT_S = 3600.0  # time limit of a request to cache an image: 40 GB at 100 Mbit/s
METADATA_KEY = "os_glance_acstor_image"
"""For image ID and hash in the system metadata. Snapshots get all of it but ``os_glance*``."""
_MIGRATING = "migrating"
_UNKNOWN = chunk_map.UNKNOWN_OS_HASH
_REASONS = control_wire.Fallback


class MirrorBase:
    """Base of the backend, before Nova's Qcow2; the registration sets :attr:`host`."""

    host: host_context.HostContext
    path: str

    def __init__(self, instance: Any = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(instance, *args, **kwargs)  # type: ignore[call-arg]
        self._image_ref = getattr(instance, "image_ref", None)
        self._instance = instance

    def cache(self, fetch_func: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Make the disk, on its image's mirror if possible; without image ID it is Nova's."""
        stock = super().cache  # type: ignore[misc]

        def make(fetch: Callable[..., None]) -> None:
            stock(fetch, *args, **kwargs)

        image_id = kwargs.get("image_id")
        if image_id is None:
            return make(fetch_func)
        if getattr(self._instance, "task_state", None) == _MIGRATING:
            self._check_recorded(image_id)
        is_new = not os.path.lexists(self.path)
        lost = self._make_on_mirror(make, fetch_func, image_id, kwargs.get("context"))
        if lost is not None:
            why = f"its mirror was lost: {lost}"
            self._download_instead(make, fetch_func, image_id, _REASONS.MIRROR_LOST, why)
        elif is_new and mirror_link.image_of(self.host.base_path(image_id)) is not None:
            self._cache_first(make, fetch_func, image_id)
        return None

    def _download_instead(
        self,
        make: Callable[[Callable[..., None]], None],
        download: Callable[..., None],
        image_id: str,
        reason: control_wire.Fallback,
        why: str,
    ) -> None:
        self.host.record_fallback(image_id, reason, why)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.host.base_path(image_id))
        make(download)

    def _cache_first(
        self,
        make: Callable[[Callable[..., None]], None],
        download: Callable[..., None],
        image_id: str,
    ) -> None:
        """Wait until the image is fully cached, if the flavor or the image demands it.

        Otherwise Nova downloads it, unless other disks of this host lie on the mirror: then the
        build fails, and Nova's scheduler tries another host.
        """
        if getattr(self._instance, "task_state", None) == _MIGRATING:
            return
        try:
            policy = cache_first.policy_of(self._instance)
        except ValueError as e:
            raise self.host.nova.cannot_start(str(e)) from e
        if policy is None:
            return
        try:
            poll_s = self.host.timeouts.fill_poll_s
            cache_first.wait_until_cached(self.host.agent, image_id, policy, poll_s)
        except cache_first.NotCachedError as e:
            os.unlink(self.path)
            if self.host.disks_on(self.host.base_path(image_id)):
                raise self.host.nova.cannot_start(
                    f"image {image_id}: {e}. Other servers of this host use its mirror"
                ) from e
            self._download_instead(make, download, image_id, _REASONS.NOT_CACHED, str(e))

    def _make_on_mirror(
        self,
        make: Callable[[Callable[..., None]], None],
        download: Callable[..., None],
        image_id: str,
        context: Any,
    ) -> Exception | None:
        """Make the disk; return why its mirror is lost, None if it is not."""
        base = self.host.base_path(image_id)
        is_new = not os.path.lexists(self.path)
        self._linked: image_record.Image | None = None
        image = None
        if mirror_link.image_of(base) is not None:  # the link may be to earlier bytes of this ID
            image = self.host.nova.get_image(context, image_id)
        lost = self.host.why_unreadable(base, image)
        if lost is not None:
            return lost
        try:
            make(functools.partial(self._fetch, download))
        except Exception as e:
            if mirror_link.image_of(base) is None or self.host.can_read(base):
                raise
            return e
        if is_new and mirror_link.image_of(base) is not None:
            self._record_hash(image_id, image or self._linked)
        return None

    def _fetch(self, download: Callable[..., None], target: str, **kwargs: Any) -> None:
        """Link the mirror instead of Nova's download to ``target``, if possible."""
        image_id = kwargs["image_id"]
        try:
            with tracing.Span("acstor_mirror_link", image=image_id):
                self._linked = self.host.link_image(
                    kwargs["context"], image_id, target, kwargs.get("trusted_certs")
                )
        except host_context.NotEligibleError as e:
            self.host.record_fallback(image_id, e.reason, e.why)
            download(target=target, **kwargs)

    def _record_hash(self, image_id: str, image: image_record.Image | None) -> None:
        """Record the hash of the disk's image in the system metadata: its ID may be reused."""
        if getattr(self._instance, "task_state", None) == _MIGRATING:
            return
        os_hash = image.os_hash if image else _UNKNOWN
        with contextlib.suppress(AttributeError, TypeError):
            known = dict(self._instance.system_metadata)
            known.pop(METADATA_KEY, None)
            if os_hash.algo:
                known[METADATA_KEY] = f"{image_id} {os_hash.algo} {os_hash.value.hex()}"
            self._instance.system_metadata = known

    def _recorded_hash(self, image_id: str) -> chunk_map.OsHash:
        try:
            text = self._instance.system_metadata.get(METADATA_KEY, "")
        except Exception as e:  # Nova may have to read its database
            LOG.info("image %s: its recorded hash cannot be read: %s", image_id, e)
            return _UNKNOWN
        noted_id, algo, value = (*text.split(), "", "", "")[:3]
        return image_record.parse_os_hash(algo, value) if noted_id == image_id else _UNKNOWN

    def _check_recorded(self, image_id: str) -> None:
        try:
            self.host.agent.attach_image(image_id, 0, self._recorded_hash(image_id))
        except errors.AcstorError as e:
            if host_context.is_id_reused(e):
                raise self.host.nova.cannot_start(str(e)) from e

    def libvirt_info(self, *args: Any, **kwargs: Any) -> Any:
        """Return libvirt's configuration of the disk, after waiting for its mirror.

        Every start of an instance passes here, even after a reboot of the host, without a token.
        """
        info = super().libvirt_info(*args, **kwargs)  # type: ignore[misc]
        image_id = self._base_image()
        if image_id is not None:
            try:
                boot = boot_profile.boot_of(self._instance)
                self.host.wait_until_readable(image_id, self._recorded_hash(image_id), boot)
            except errors.AcstorError as e:
                raise self.host.nova.cannot_start(str(e)) from e
            self._settle(info)
        return info

    def _settle(self, info: Any) -> None:
        self._choose_cachemode(info)
        if self.host.nova.conf.acstor.disk_errors == "pause":
            _pause_on_errors(info)

    def _base_image(self) -> str | None:
        """Return the image whose mirror this disk is on; restore a missing link."""
        base = None
        if os.path.basename(self.path) in host_context.ROOT_DISKS:
            base = local_file.backing_of(self.path)
        if base is None:
            return None
        image_id = mirror_link.image_of(base)
        if image_id is None and not os.path.lexists(base) and self._image_ref:
            if base != self.host.base_path(self._image_ref):
                return None
            image_id = self._image_ref
        if image_id is not None and not os.path.exists(base):
            LOG.info("%s is missing; recreating it", base)
            os.makedirs(os.path.dirname(base), exist_ok=True)
            mirror_link.make_link(self.host.mirror_path(image_id), base)
        return image_id

    def _choose_cachemode(self, info: Any) -> None:
        conf = self.host.nova.conf
        by_hand = any(mode.startswith("file=") for mode in conf.libvirt.disk_cachemodes)
        if not by_hand:
            info.driver_cache = CACHEMODE
            info.driver_io = None


def _pause_on_errors(info: Any) -> None:
    """Make QEMU pause the guest on errors of its disk, by changing the XML."""
    stock = info.format_dom

    def format_dom() -> Any:
        element = stock()
        for driver in element.findall("driver"):
            driver.set("error_policy", "stop")
            driver.set("rerror_policy", "stop")
        return element

    info.format_dom = format_dom


def precache(
    host: host_context.HostContext, stock: Callable[[Any, str], bool], context: Any, image_id: str
) -> bool:
    """Cache an image on Nova's request; return whether it was new."""
    base = host.base_path(image_id)
    is_new = not os.path.exists(base)
    if not is_new and mirror_link.image_of(base) is None:
        return stock(context, image_id)
    try:
        os.makedirs(os.path.dirname(base), exist_ok=True)
        host.link_image(context, image_id, base)
    except host_context.NotEligibleError as e:
        host.record_fallback(image_id, e.reason, e.why)
        return stock(context, image_id)
    host.agent.pre_seed(image_id, PRECACHE_TIMEOUT_S)
    return is_new
