# SPDX-License-Identifier: Apache-2.0
"""Checks whether the images of instances are fully cached, or will be."""

import collections
import math
import pathlib
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from oslo_config import cfg

from acstor_common.disks import local_file
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_nova import mirror_link
from acstor_nova.checks import check_results

LONGEST_INTERVAL_S = 5400
"""Longest interval of Nova's image cache manager; after it Nova counts as away."""
SPARED = 10  # one part in SPARED of the cache is not for pinned images
NEARLY_FULL = 0.8  # share of the limit at which the operator must act, as in the alert
MOST_NAMED = 5
OPTS = [
    cfg.IntOpt(
        "manager_interval",
        default=2400,
        min=-1,
        deprecated_name="image_cache_manager_interval",
        deprecated_group="DEFAULT",
    ),
]
"""Nova's option, in the group image_cache."""
_CACHE = "[acstor_agent] cache_limit_bytes"

CheckResult = check_results.CheckResult
Level = check_results.Level
Images = Mapping[str, dict[str, Any]]  # the images in the agent's status


class Instances(NamedTuple):
    """The instances of this host, by image; unreadable disks with their errors."""

    folder: str
    used: Mapping[ids.ImageId, int]
    unread: list[str]


def check_manager_interval(conf: cfg.ConfigOpts) -> CheckResult:
    """Check that Nova reports the used images often enough."""
    what, interval_s = "[image_cache] manager_interval", conf.image_cache.manager_interval
    if 0 <= interval_s < LONGEST_INTERVAL_S:
        return CheckResult(what, Level.OK, f"{interval_s} s")
    if interval_s < 0:
        detail = "it is disabled: after a week images of stopped instances lose their pins"
    else:
        detail = (
            f"{interval_s} s is not below {LONGEST_INTERVAL_S} s: images never count as unused, "
            "and stay pinned until the cache is full"
        )
    return CheckResult(what, Level.WARNING, detail, "Set it to 2400, Nova's default.")


def find_instances(conf: cfg.ConfigOpts) -> Instances:
    """Find the instances of this host, by the image of their mirror."""
    folder = pathlib.Path(conf.instances_path)
    used: collections.Counter[ids.ImageId] = collections.Counter()
    unread = []
    try:
        found = sorted(folder.iterdir())
    except OSError as e:
        return Instances(str(folder), {}, [f"{folder}: {e.strerror}"])
    for disk in (instance / "disk" for instance in found):
        try:
            disk.open("rb").close()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as e:
            unread.append(f"{disk}: {e.strerror}")
            continue
        backing = local_file.backing_of(str(disk))
        if backing is not None and (image_id := mirror_link.image_of(backing)) is not None:
            used[image_id] += 1
    return Instances(str(folder), dict(used), unread)


def check_status(status: Mapping[str, Any], instances: Instances) -> Iterator[CheckResult]:
    """Check the agent's status against the instances."""
    used = instances.used
    if instances.unread:
        yield CheckResult(
            "instances",
            Level.WARNING,
            f"the following results omit unreadable disks: {_named(instances.unread)}",
            "Run this command as root, on the compute host, with nova-compute's own nova.conf.",
        )
    kept, count = status["keep_images"], sum(used.values())
    if kept == "none":
        yield CheckResult(
            "keep_images",
            Level.WARNING,
            f"none: {_instances(count)} of this host always depend on other hosts and on the image "
            "store, even after the deletion of their image",
            "Set [acstor_agent] keep_images = host, or pre-seed the images.",
        )
        return
    yield CheckResult("keep_images", Level.OK, kept)
    yield _room(status, used)
    yield from _progress(status["images"], instances)


def _room(status: Mapping[str, Any], used: Mapping[ids.ImageId, int]) -> CheckResult:
    cache, images = status["cache"], status["images"]
    limit, promised = cache["limit_bytes"], cache["reserved_bytes"]
    room = limit - limit // SPARED
    coming = [image_id for image_id in used if not _is_promised(images.get(image_id))]
    coming_bytes = sum(_size_bytes(images.get(image_id)) or 0 for image_id in coming)
    unknown = sum(_size_bytes(images.get(image_id)) is None for image_id in coming)
    lacking = {
        image_id: image["fill"]["shortfall_bytes"]
        for image_id, image in images.items()
        if image["fill"] and image["fill"]["shortfall_bytes"]
    }
    parts = [f"{_mib(promised)} are reserved, of the {_mib(room)} for pinned images"]
    if coming:
        parts.append(
            f"{len(coming)} images of instances are not pinned yet, at most {_mib(coming_bytes)}"
            + (f" and {unknown} of unknown size" if unknown else "")
        )
    if lacking:
        each = (f"{image_id} lacks {_mib(count)}" for image_id, count in lacking.items())
        parts.append(
            f"no space for {_named(list(each))}: their instances still depend on other hosts"
        )
    elif promised + coming_bytes > room:
        parts.append("there will be no space for all of them")
    elif promised <= NEARLY_FULL * limit:
        return CheckResult("space for images", Level.OK, "; ".join(parts))
    needed = max(_for(promised + coming_bytes), limit + _for(max(lacking.values(), default=0)))
    remedy = (
        f"Set {_CACHE} to {max(needed, math.ceil(promised / NEARLY_FULL))} or more, "
        "or move instances of some images to other hosts."
    )
    return CheckResult("space for images", Level.WARNING, "; ".join(parts), remedy)


def _progress(images: Images, instances: Instances) -> Iterator[CheckResult]:
    used = instances.used
    known = {image_id: (images.get(image_id) or {}).get("fill") for image_id in used}
    failing = {i: whole["why"] for i, whole in known.items() if whole and _is(whole, "failing")}
    partial = [image_id for image_id, whole in known.items() if not _is(whole, "fully_cached")]
    if failing:
        named = _named([f"{image_id}: {why}" for image_id, why in failing.items()])
        remedy = "Correct the cause; the agent retries."
        yield CheckResult("failing images", Level.WARNING, named, remedy)
    if paused := [image_id for image_id, whole in known.items() if _is(whole, "paused")]:
        remedy = "openstack acstor image resume"
        yield CheckResult(
            "paused images", Level.WARNING, f"by an operator: {_named(paused)}", remedy
        )
    if not used:
        detail = f"no instance on a mirror was found in {instances.folder}"
        yield CheckResult("cached images", Level.OK, detail)
        return
    if not partial:
        yield CheckResult("cached images", Level.OK, f"all {len(used)} images of instances")
        return
    count = sum(used[image_id] for image_id in partial)
    named = _named([f"{image_id} {_how_far(known[image_id])}" for image_id in partial])
    detail = f"{_instances(count)} still depend on other hosts or the image store: {named}"
    yield CheckResult("cached images", Level.OK, detail)


def _is(whole: Mapping[str, Any] | None, state: str) -> bool:
    return whole is not None and whole["state"] == state


def _how_far(whole: Mapping[str, Any] | None) -> str:
    if whole is None:
        return "not pinned yet"
    share = "" if whole["cached_share"] is None else f" {100 * whole['cached_share']:.0f} %"
    left = "" if whole["remaining_s"] is None else f", {whole['remaining_s']:.0f} s left"
    return f"{whole['state'].replace('_', ' ')}{share}{left}"


def _is_promised(image: Mapping[str, Any] | None) -> bool:
    """Return whether an image's reservation is known, which takes its chunk map."""
    whole = image["fill"] if image else None
    if not whole or whole["shortfall_bytes"]:
        return False
    return bool(whole["total_bytes"]) or whole["remaining_bytes"] is not None


def _size_bytes(image: Mapping[str, Any] | None) -> int | None:
    return image["size_bytes"] if image else None


def _for(count: int) -> int:
    """Return the cache limit with so many bytes for pinned images.

    >>> _for(9_000), _for(9_001)
    (10000, 10002)
    """
    return -(-count * SPARED // (SPARED - 1))


def _named(those: Sequence[str]) -> str:
    more = len(those) - MOST_NAMED
    return ", ".join(those[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _instances(count: int) -> str:
    return f"{count} instance{'' if count == 1 else 's'}"


def _mib(count: int) -> str:
    return f"{count / geometry.MIB:.0f} MiB"
