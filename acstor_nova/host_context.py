# SPDX-License-Identifier: Apache-2.0
"""Context of a host for the backend: Nova's functions, the agent, paths, fallbacks."""

import dataclasses
import logging
import os
import time
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from oslo_config import cfg

from acstor_common import errors
from acstor_common.disks import local_file
from acstor_common.formats import chunk_map
from acstor_common.image import image_record
from acstor_common.service import tracing
from acstor_common.wire import control_wire
from acstor_nova import agent_client
from acstor_nova import boot_profile
from acstor_nova import fallbacks
from acstor_nova import mirror_link

LOG = logging.getLogger(__name__)

ASK_AGAIN_S = 0.5
ROOT_DISKS = frozenset({"disk", "disk.rescue"})
_MISSING = "ChunkMissing"
_NOT_THERE = (_MISSING, "ChunkRefused")
_REASONS = control_wire.Fallback


@dataclasses.dataclass(frozen=True)
class NovaFunctions:
    """The functions of Nova that acstor uses."""

    conf: cfg.ConfigOpts
    base_name: Callable[[str], str]  # returns the file name of an image in Nova's image cache
    get_image: Callable[[Any, str], image_record.Image | None]  # None: missing, or no answer
    inspect: Callable[[str, str], None]  # raises Nova's error if a raw mirror is unsafe
    cannot_start: Callable[[str], Exception]  # creates Nova's error for an unusable disk


class Timeouts(NamedTuple):
    """Timeouts and intervals in seconds."""

    agent_start_s: float = 60.0  # for an agent that is not running yet, as after a reboot
    agent_answer_s: float = agent_client.TIMEOUT_S  # for an answer of the agent
    power_off_s: float = 2.0  # for the agent, before an instance is switched off
    report_retry_s: float = fallbacks.RETRY_S  # between two attempts to report fallbacks
    checkpoint_s: float = 180.0  # for a checkpoint that is only delayed
    checkpoint_retry_s: float = 5.0  # between two requests for a checkpoint
    fill_poll_s: float = 1.0  # between two looks at the fill of an image that a server waits for
    upload_end_s: float = 60.0  # until Glance ends an aborted upload
    upload_poll_s: float = 1.0  # between two requests for an image's status


DEFAULT_TIMEOUTS = Timeouts()


def parse_image(record: Mapping[str, Any]) -> image_record.Image:
    """Parse Nova's record of an image, which has additional properties apart."""
    return image_record.Image.from_record({**record.get("properties", {}), **record})


class NotEligibleError(Exception):
    """The image cannot be mirrored; Nova must download it."""

    def __init__(self, reason: control_wire.Fallback, why: str) -> None:
        super().__init__(reason, why)
        self.reason, self.why = reason, why

    def __str__(self) -> str:
        return self.why


class HostContext:
    """The agent, the paths and the fallback counters of this nova-compute."""

    def __init__(self, nova: NovaFunctions, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> None:
        self.nova, self.timeouts = nova, timeouts
        self.fallbacks = fallbacks.Fallbacks(timeouts.report_retry_s)

    @property
    def agent(self) -> agent_client.AgentClient:
        """A client of the agent."""
        own = self.nova.conf.acstor
        return agent_client.AgentClient(own.control_socket, self.timeouts.agent_answer_s)

    def mirror_path(self, image_id: str) -> str:
        """Return the path of an image's mirror."""
        return mirror_link.mirror_path(self.nova.conf.acstor.mount_point, image_id)

    def base_path(self, image_id: str) -> str:
        """Return an image's path in Nova's image cache."""
        conf = self.nova.conf
        folder = os.path.join(conf.instances_path, conf.image_cache.subdirectory_name)
        return os.path.join(folder, self.nova.base_name(image_id))

    def record_fallback(self, image_id: str, reason: control_wire.Fallback, why: str) -> None:
        """Log and count a fallback to Nova's download."""
        self.fallbacks.record_fallback(reason, image_id, why)
        if reason == _REASONS.AGENT_UNREACHABLE:  # do not wait for a hung agent again
            self.fallbacks.report_later(self.agent)
        elif not self.fallbacks.report(self.agent):
            self.fallbacks.report_later(self.agent)

    def link_image(
        self, context: Any, image_id: str, link: str, trusted_certs: Any = None
    ) -> image_record.Image:
        """Link a mirror into Nova's image cache; NotEligibleError: the image must be downloaded."""
        if self.nova.base_name(image_id) != os.path.basename(link):
            raise NotEligibleError(
                _REASONS.OTHER_NAME, f"Nova requests it under another name, {link}"
            )
        if trusted_certs or self.nova.conf.glance.verify_glance_signatures:
            raise NotEligibleError(_REASONS.SIGNED, "its signature must be verified")
        image = self.nova.get_image(context, image_id)
        if image is not None:
            _check_eligible(image)
        stored = self._ensure(image_id, image)
        if image is None:
            LOG.info("image %s: Glance returned no record of it; the agent has its map", image_id)
            image = image_record.Image(disk_format=stored.disk_format, size_bytes=stored.size_bytes)
        recorded = agent_client.Stored(image.disk_format, image.size_bytes)
        # Agents read a conversion of other formats, which is bound to the image by its hash.
        if recorded != stored and not image.is_convertible:
            why = f"Glance has {recorded}, the agent's map is for {stored}"
            raise NotEligibleError(_REASONS.RECORD_DIFFERS, why)
        path = self.mirror_path(image_id)
        try:
            mirror_link.read_head(path)
        except OSError as e:
            raise NotEligibleError(_REASONS.MIRROR_UNREADABLE, str(e)) from e
        # The mirror is raw; the original image was inspected when its chunk map was made.
        self.nova.inspect(image_id, path)
        mirror_link.make_link(path, link)
        self.fallbacks.report(self.agent)
        LOG.info("image %s: %s links to the mirror %s", image_id, link, path)
        return image

    def _ensure(self, image_id: str, image: image_record.Image | None) -> agent_client.Stored:
        try:
            return self.attach_image(image_id, image)
        except errors.AgentUnreachable as e:
            raise NotEligibleError(_REASONS.AGENT_UNREACHABLE, str(e)) from e
        except errors.AgentRefused as e:
            if image is not None and image.is_convertible and e.kind in _NOT_THERE:
                why = f"its format is {image.disk_format}, and it is not converted: {e.why}"
                raise NotEligibleError(_REASONS.DISK_FORMAT, why) from e
            missing = e.kind == _MISSING
            reason = _REASONS.NOT_MAPPED if missing else _REASONS.AGENT_REFUSED
            raise NotEligibleError(reason, e.why) from e

    def attach_image(self, image_id: str, image: image_record.Image | None) -> agent_client.Stored:
        """Attach an image in the agent; compare the hash if the image in Glance is given.

        :raises errors.AcstorError: the agent refuses or does not answer
        :raises Exception: Nova's own: disks of this host use other bytes under this ID
        """
        os_hash = image.os_hash if image else chunk_map.UNKNOWN_OS_HASH
        try:
            return self.agent.attach_image(image_id, mirror_link.HEAD_BYTES, os_hash)
        except errors.AgentRefused as e:
            if not is_id_reused(e):
                raise
            if disks := self.disks_on(self.base_path(image_id)):
                raise self.nova.cannot_start(
                    f"image {image_id}: {e.why}. These disks are based on the former bytes: "
                    f"{', '.join(disks)}. Use another host, or another id"
                ) from e
            LOG.info("image %s: %s; the former bytes are dropped", image_id, e.why)
        self.agent.detach_image(image_id)
        return self.agent.attach_image(image_id, mirror_link.HEAD_BYTES, os_hash)

    def disks_on(self, base: str) -> list[str]:
        """Return the root disks of this host that are based on a file of Nova's image cache."""
        folder = self.nova.conf.instances_path
        paths = (
            os.path.join(folder, instance, name)
            for instance in sorted(os.listdir(folder))
            for name in sorted(ROOT_DISKS)
        )
        return [path for path in paths if local_file.backing_of(path) == base]

    def why_unreadable(
        self, base: str, image: image_record.Image | None = None
    ) -> Exception | None:
        """Return why Nova cannot read the image behind a link; None if it can, or may soon.

        It asks the agent first, because a read of the mirror may block Nova's process; a silent
        agent may be starting. Raises Nova's errors as :meth:`attach_image`.
        """
        image_id = mirror_link.image_of(base)
        if image_id is not None:
            try:
                self.attach_image(image_id, image)
            except errors.AgentRefused as e:
                return e
            except errors.AgentUnreachable as e:
                LOG.info("%s", e)
        return None

    def can_read(self, base: str) -> bool:
        """Return whether Nova can read the image behind a link."""
        if self.why_unreadable(base) is not None:
            return False
        try:
            mirror_link.read_head(base)
        except OSError:
            return False
        return True

    def wait_until_readable(
        self,
        image_id: str,
        os_hash: chunk_map.OsHash = chunk_map.UNKNOWN_OS_HASH,
        boot: boot_profile.ProfiledBoot = boot_profile.NO_BOOT,
    ) -> None:
        """Wait until a mirror can be read; AcstorError: not in ``agent_start_s`` or other bytes."""
        with tracing.Span("acstor_mirror_readable", image=image_id):
            self._wait_until_readable(image_id, os_hash, boot)

    def _wait_until_readable(
        self, image_id: str, os_hash: chunk_map.OsHash, boot: boot_profile.ProfiledBoot
    ) -> None:
        ends_s = time.monotonic() + self.timeouts.agent_start_s
        while True:
            try:
                self.agent.attach_image(image_id, mirror_link.HEAD_BYTES, os_hash, boot)
                os.stat(self.mirror_path(image_id))
            except (errors.AgentUnreachable, errors.AgentRefused, OSError) as e:
                if is_id_reused(e):
                    raise errors.Unusable(
                        f"the mirror of image {image_id}",
                        str(e),
                        "Start it on a host that still has the former chunk map",
                    ) from e
                if time.monotonic() > ends_s:
                    raise errors.Unusable(
                        f"the mirror of image {image_id}", str(e), "Is acstor-agent running?"
                    ) from e
                LOG.info("waiting for the mirror of image %s: %s", image_id, e)
            else:
                return
            time.sleep(ASK_AGAIN_S)


def is_id_reused(error: Exception) -> bool:
    """Return whether the agent has other bytes under an image's ID."""
    return isinstance(error, errors.AgentRefused) and error.kind == errors.ImageIdReused.__name__


def notify_power_off(host: HostContext, instance_id: str, *, is_cancelled: bool = False) -> None:
    """Tell the agent that an instance on a mirror is being switched off, or stays on.

    Otherwise a QEMU whose reads wait ends only when libvirt kills it after 10 s.
    """
    folder = os.path.join(host.nova.conf.instances_path, instance_id)
    bases = [local_file.backing_of(os.path.join(folder, name)) for name in ROOT_DISKS]
    if any(base is not None and mirror_link.is_agent_file(base) for base in bases):
        try:
            host.agent.notify_power_off(
                instance_id, host.timeouts.power_off_s, is_cancelled=is_cancelled
            )
        except (errors.AgentUnreachable, errors.AgentRefused) as e:
            may = "fail for a minute" if is_cancelled else "delay its power-off"
            LOG.info("instance %s: its reads may %s: %s", instance_id, may, e)


def _check_eligible(image: image_record.Image) -> None:
    if image.status != "active":
        raise NotEligibleError(_REASONS.NOT_ACTIVE, f"its status is {image.status}")
    formats = (*image_record.SERVED_DISK_FORMATS, *image_record.CONVERTIBLE_DISK_FORMATS)
    if image.disk_format not in formats:
        raise NotEligibleError(_REASONS.DISK_FORMAT, f"its format is {image.disk_format}")
    if image.is_encrypted:
        raise NotEligibleError(_REASONS.ENCRYPTED, "it is encrypted")
