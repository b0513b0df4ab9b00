# SPDX-License-Identifier: Apache-2.0
"""The policy "cache first": a new server waits until its host has its whole image.

A flavor (extra spec ``acstor:fully_cached_within``) or an image (property
``img_fully_cached_within``) has it, as a time limit in seconds; a flavor's counts before an
image's. Such a server never waits for the image store once it is ACTIVE.
"""

import contextlib
import logging
import time
from collections.abc import Mapping
from typing import Any

from acstor_common import errors
from acstor_common.wire import control_wire
from acstor_common.wire import fill_progress
from acstor_nova import agent_client

LOG = logging.getLogger(__name__)

EXTRA_SPEC = "acstor:fully_cached_within"
IMAGE_PROPERTY = "img_fully_cached_within"
"""Outside of acstor's protected properties, which the owner of an image cannot set."""
MAX_LIMIT_S = 3600
_FINAL = frozenset({fill_progress.FillState.NO_SPACE, fill_progress.FillState.PAUSED})


class NotCachedError(Exception):
    """The image was not fully cached in time; the message says why."""


def limit_of(instance: Any) -> int | None:
    """Return the time limit of an instance's policy in seconds; None without one.

    :raises ValueError: it is no whole number of seconds from 1 to :data:`MAX_LIMIT_S`
    """
    flavor = getattr(instance, "flavor", None)
    extra_specs: Mapping[str, str] = getattr(flavor, "extra_specs", None) or {}
    # Nova copies an image's properties to the instance's system metadata when it is built.
    metadata: Mapping[str, str] = getattr(instance, "system_metadata", None) or {}
    for what, text in (
        (f"extra spec {EXTRA_SPEC}", extra_specs.get(EXTRA_SPEC)),
        (f"image property {IMAGE_PROPERTY}", metadata.get(f"image_{IMAGE_PROPERTY}")),
    ):
        if text is not None:
            return _parse_limit(what, text)
    return None


def _parse_limit(what: str, text: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_LIMIT_S))
    if not is_number or not 1 <= int(text) <= MAX_LIMIT_S:
        raise ValueError(f"{what} is {text[:40]!r}: give whole seconds from 1 to {MAX_LIMIT_S}")
    return int(text)


def wait_until_cached(
    agent: agent_client.AgentClient, image_id: str, limit_s: float, poll_s: float
) -> None:
    """Let the agent fill an image before others, and wait until it is fully cached.

    :param poll_s: between two looks at the state of the fill
    :raises NotCachedError: it is not within ``limit_s``, or cannot be
    """
    began_s = time.monotonic()
    try:
        fill: Mapping[str, Any] = agent.set_fill_mode(
            image_id, control_wire.FillMode.URGENT, limit_s
        )
        while fill.get("state") != fill_progress.FillState.FULLY_CACHED:
            left_s = began_s + limit_s - time.monotonic()
            if fill.get("state") in _FINAL or left_s <= 0:
                raise NotCachedError(_why(fill, limit_s))
            time.sleep(min(poll_s, left_s))
            fill = _fill_of(agent.agent_status(), image_id)
    except (errors.AgentUnreachable, errors.AgentRefused) as e:
        raise NotCachedError(str(e)) from e
    finally:
        with contextlib.suppress(errors.AgentUnreachable, errors.AgentRefused):
            agent.set_fill_mode(image_id, control_wire.FillMode.NORMAL)
    took_s = time.monotonic() - began_s
    LOG.info("image %s: fully cached, waited %.1f s for it", image_id, took_s)


def _fill_of(status: Mapping[str, Any], image_id: str) -> Mapping[str, Any]:
    images = status.get("images", {})
    return images.get(image_id, {}).get("fill") or {}


def _why(fill: Mapping[str, Any], limit_s: float) -> str:
    state, why = fill.get("state") or "not filled", fill.get("why") or "no reason is known"
    share = f"{fill.get('cached_share') or 0.0:.0%} are cached"
    return f"it is not fully cached within {limit_s:g} s: {state}, {share} ({why})"
