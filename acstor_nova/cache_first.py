# SPDX-License-Identifier: Apache-2.0
"""The policy "cache first": a new server waits until its host has its whole image.

A flavor (extra spec ``acstor:fully_cached_within``) or an image (property
``img_fully_cached_within``) has it, as a time limit in seconds; a flavor's precedes. Such a server
never waits for the image store once it is ACTIVE.

Tenants make images, so their limit is shorter (a build that waits has one of nova-compute's places)
and their fill is not urgent. An operator's own decision about the image's fill stands.
"""

import contextlib
import logging
import time
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

from acstor_common import errors
from acstor_common.wire import control_wire
from acstor_common.wire import fill_progress
from acstor_nova import agent_client

LOG = logging.getLogger(__name__)

EXTRA_SPEC = "acstor:fully_cached_within"
IMAGE_PROPERTY = "img_fully_cached_within"
"""Outside of acstor's protected properties, which the owner of an image cannot set."""
MAX_FLAVOR_S, MAX_IMAGE_S = 3600, 300
_FINAL = frozenset({fill_progress.FillState.NO_SPACE, fill_progress.FillState.PAUSED})
_FillMode = control_wire.FillMode


class NotCachedError(Exception):
    """The image was not fully cached in time; the message says why."""


class Policy(NamedTuple):
    """The time limit of a server, and the fill mode that its origin allows."""

    limit_s: int
    mode: control_wire.FillMode


def policy_of(instance: Any) -> Policy | None:
    """Return the policy of an instance, None without one; ValueError if its limit is invalid."""
    flavor = getattr(instance, "flavor", None)
    extra_specs: Mapping[str, str] = getattr(flavor, "extra_specs", None) or {}
    # Nova copies an image's properties to the instance's system metadata when it is built.
    metadata: Mapping[str, str] = getattr(instance, "system_metadata", None) or {}
    if (text := extra_specs.get(EXTRA_SPEC)) is not None:
        return Policy(
            _parse_limit(f"extra spec {EXTRA_SPEC}", text, MAX_FLAVOR_S), _FillMode.URGENT
        )
    if (text := metadata.get(f"image_{IMAGE_PROPERTY}")) is not None:
        what = f"image property {IMAGE_PROPERTY}"
        return Policy(_parse_limit(what, text, MAX_IMAGE_S), _FillMode.NORMAL)
    return None


def _parse_limit(what: str, text: str, most_s: int) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(most_s))
    if not is_number or not 1 <= int(text) <= most_s:
        raise ValueError(f"{what} is {text[:40]!r}: set whole seconds from 1 to {most_s}")
    return int(text)


def wait_until_cached(
    agent: agent_client.AgentClient, image_id: str, policy: Policy, poll_s: float
) -> None:
    """Let the agent fill an image, and wait until it is fully cached; or raise NotCachedError."""
    began_s = time.monotonic()
    try:
        with _fill_mode(agent, image_id, policy):
            fill = _fill_of(agent, image_id)
            while fill.get("state") != fill_progress.FillState.FULLY_CACHED:
                left_s = began_s + policy.limit_s - time.monotonic()
                if fill.get("state") in _FINAL or left_s <= 0:
                    raise NotCachedError(_why(fill, policy.limit_s))
                time.sleep(min(poll_s, left_s))
                fill = _fill_of(agent, image_id)
    except (errors.AgentUnreachable, errors.AgentRefused) as e:
        raise NotCachedError(str(e)) from e
    took_s = time.monotonic() - began_s
    LOG.info("image %s: fully cached, waited %.1f s for it", image_id, took_s)


@contextlib.contextmanager
def _fill_mode(agent: agent_client.AgentClient, image_id: str, policy: Policy) -> Iterator[None]:
    """Set the policy's fill mode for the block, unless an operator has set another than normal."""
    if _fill_of(agent, image_id).get("mode", _FillMode.NORMAL) != _FillMode.NORMAL:
        yield
        return
    is_urgent = policy.mode is _FillMode.URGENT
    agent.set_fill_mode(image_id, policy.mode, policy.limit_s if is_urgent else 0.0)
    try:
        yield
    finally:
        if is_urgent:
            with contextlib.suppress(errors.AgentUnreachable, errors.AgentRefused):
                agent.set_fill_mode(image_id, _FillMode.NORMAL)


def _fill_of(agent: agent_client.AgentClient, image_id: str) -> Mapping[str, Any]:
    images = agent.agent_status().get("images", {})
    return images.get(image_id, {}).get("fill") or {}


def _why(fill: Mapping[str, Any], limit_s: float) -> str:
    state, why = fill.get("state") or "not filled", fill.get("why") or "no reason was reported"
    share = f"{fill.get('cached_share') or 0.0:.0%} are cached"
    return f"it is not fully cached within {limit_s:g} s: {state}, {share} ({why})"
