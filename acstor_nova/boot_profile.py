# SPDX-License-Identifier: Apache-2.0
"""Boot profiles: servers whose boots read more of an image than those of other servers.

A flavor's extra spec ``acstor:boot_profile`` names the profile of its servers. If it is
``metadata:KEY``, each value of this key in the servers' metadata is a profile.
"""

import logging
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

LOG = logging.getLogger(__name__)

EXTRA_SPEC = "acstor:boot_profile"
METADATA = "metadata:"


class ProfiledBoot(NamedTuple):
    """The boot of an instance that has a profile."""

    instance_id: str
    profile: str  # its name


NO_BOOT = ProfiledBoot("", "")


def boot_of(instance: Any) -> ProfiledBoot:
    """Return the boot of an instance; NO_BOOT if it has no profile.

    >>> import types
    >>> def profile(spec):
    ...     flavor = types.SimpleNamespace(extra_specs={EXTRA_SPEC: spec})
    ...     server = types.SimpleNamespace(uuid="7d2c", flavor=flavor, metadata={"role": "db"})
    ...     return boot_of(server).profile
    >>> profile("database"), profile("metadata:role"), profile("metadata:team")
    ('database', 'metadata:role=db', '')
    """
    if instance is None:
        return NO_BOOT
    try:
        profile = _profile_of(instance)
    except Exception as e:  # Nova may have to read its database
        LOG.info("instance %s: its boot profile cannot be read: %s", instance.uuid, e)
        return NO_BOOT
    return ProfiledBoot(instance.uuid, profile) if profile else NO_BOOT


def _profile_of(instance: Any) -> str:
    extra_specs: Mapping[str, str] = instance.flavor.extra_specs or {}
    profile = extra_specs.get(EXTRA_SPEC, "")
    if not profile.startswith(METADATA):
        return profile
    value = (instance.metadata or {}).get(profile.removeprefix(METADATA), "")
    return f"{profile}={value}" if value else ""
