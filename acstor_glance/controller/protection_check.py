# SPDX-License-Identifier: Apache-2.0
"""Checks whether needed images are protected; an unknown status counts as a problem."""

from collections.abc import Iterator
from typing import NamedTuple

from oslo_config import cfg

from acstor_common import errors
from acstor_common.wire import decision_messages
from acstor_glance import deletion_protection
from acstor_glance.client import decision_client
from acstor_glance.client import glance_client
from acstor_glance.controller import protection_reconciler

MAX_IMAGES = 1000

_WHY = {
    deletion_protection.ProtectionStatus.FREE: "it is not protected yet: a listener protects it "
    "within seconds, unless its log shows an error or Glance allows no more tags",
    deletion_protection.ProtectionStatus.DECLINED: "a user removed acstor's protection; to allow "
    "it again, remove the tag acstor_unprotected=... from the image",
    deletion_protection.ProtectionStatus.ARTEFACT: "hosts report that servers use it, but it is an "
    "artefact, which is never protected: a host reports wrong data",
    deletion_protection.ProtectionStatus.GONE: "it is no longer in Glance: data that no host "
    "has is lost",
}


class CheckResult(NamedTuple):
    """Result of one check."""

    subject: str
    is_healthy: bool
    message: str


def check_protection(
    conf: cfg.ConfigOpts, images: glance_client.GlanceClient
) -> Iterator[CheckResult]:
    """Yield the results of all checks."""
    is_on = bool(conf.acstor_glance.protect_used_images)
    yield CheckResult(
        "protect_used_images",
        is_on,
        "" if is_on else "it is disabled: images that servers need can be deleted",
    )
    service = decision_client.DecisionClient(conf)
    try:
        needed = protection_reconciler.fetch_needed(service)
        reported = protection_reconciler.fetch_listeners(service)
    except errors.ImageServiceError as exc:
        yield CheckResult("decision service", False, f"the needed images are unknown: {exc}")
        return
    yield _check_hosts(needed)
    yield _check_listeners(reported)
    if not needed.is_complete:
        yield CheckResult(
            "needed images",
            False,
            f"more than {len(needed.images)}: the others are not protected, and no protection "
            "is removed",
        )
    yield from _check_images(needed, images)


def _check_hosts(needed: decision_messages.NeededImages) -> CheckResult:
    why = ""
    if (
        needed.last_sample_s is None
        or needed.now_s - needed.last_sample_s > deletion_protection.SAMPLE_AGE_S
    ):
        why = (
            "no host reports the images that it needs: new ones are not protected, and no "
            "protection is removed"
        )
    elif needed.silent_hosts:
        why = (
            f"{needed.silent_hosts} reported within a day, but not recently: images that they need "
            "since then are not protected"
        )
    return CheckResult("hosts", not why, why)


def _check_listeners(reported: list[protection_reconciler.ListenerReport]) -> CheckResult:
    silent = [listener.listener for listener in reported if listener.is_silent]
    why = "none has ever reported to the decision service: is acstor-glance-listener running?"
    if silent:
        why = f"silent: {', '.join(silent)}. Check acstor-glance-listener there"
    return CheckResult(
        "listeners", bool(reported) and not silent, why if silent or not reported else ""
    )


def _check_images(
    needed: decision_messages.NeededImages, images: glance_client.GlanceClient
) -> Iterator[CheckResult]:
    looked_at, project_id = needed.images[:MAX_IMAGES], images.project_id
    for image_id in looked_at:
        status = deletion_protection.protection_of(images.read_or_none(image_id), project_id)
        why = _WHY.get(status, "")
        yield CheckResult(f"image {image_id}", not why, why)
    left = len(needed.images) - len(looked_at)
    if left:
        yield CheckResult("other images", False, f"{left} more are needed and were not checked")
