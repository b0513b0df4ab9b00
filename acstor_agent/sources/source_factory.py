# SPDX-License-Identifier: Apache-2.0
"""Makes the sources of the agent out of the names in its configuration.

Every driver is wrapped the same way, from the inside out: deadline (nothing takes for ever) and
layout (images that are not raw).
"""

import inspect
import pathlib
import random
from collections.abc import Sequence
from typing import NamedTuple

import stevedore
import stevedore.exception
import trio
from oslo_config import cfg

from acstor_agent import conf as agent_conf
from acstor_agent.core.sources import attempt_timeout
from acstor_agent.sources import base
from acstor_agent.sources import deadline_source
from acstor_agent.sources import decode_threads
from acstor_agent.sources import download_source
from acstor_agent.sources import driver as driver_
from acstor_agent.sources import glance
from acstor_agent.sources import layout_source
from acstor_common import errors
from acstor_common.service import session_options

_OPTION = "[acstor_agent] sources"
_NOT_MADE = {
    "rbd": "It would need Ceph's keys on every host, and hosts that have them boot from Ceph by "
    "Nova's own images_type = rbd. For others run acstor-glance-gateway and name the source "
    "gateway. "
}


class Sources(NamedTuple):
    """What a client of sources chooses among.

    :param sources: each with its deadline and layouts, the preferred one first
    :param configured: which options name each source, and as whom it is asked, for operators
    :param copies: give what all sources refuse to give in parts; None: nothing does
    :param read_copies: around ``copies``, makes of them what guests read
    """

    sources: Sequence[base.Source]
    configured: Sequence[str]
    copies: download_source.DownloadSource | None = None
    read_copies: base.Source | None = None


def build(
    names: Sequence[str],
    conf: cfg.ConfigOpts,
    nursery: trio.Nursery,
    layout_of: layout_source.LayoutOf,
    elsewhere: download_source.Elsewhere = lambda image_id: "",
) -> Sources:
    """Return the sources ``names``, the preferred one first.

    :param conf: with the options of the agent and its sources registered; copies of what Glance
        gives whole lie on the file system of ``cache_dir``
    :param nursery: where reads run that several callers share; it must outlive the source's use
    :param layout_of: says where the bytes of images are
    :param elsewhere: says which other host takes an image as a whole for all, if one does
    :raises errors.Unusable: a name is not installed, does not load, or its options make no sense
    """
    if not names:
        raise errors.Unusable(_OPTION, "it is empty", _installed())
    drivers = [_load(name).from_conf(conf[f"source_{name}"]) for name in names]
    decoding = decode_threads.DecodeThreads(nursery)
    in_time = [deadline_source.DeadlineSource(driver, attempt_timeout.BASE_S) for driver in drivers]
    sources = [
        layout_source.LayoutSource(source, layout_of, nursery, decoding) for source in in_time
    ]
    groups = [f"source_{name}" for name in names]
    configured = [session_options.describe(group, conf[group]) for group in groups]
    of_glance = (one for one in drivers if isinstance(one, glance.GlanceSource))
    streaming = next((one for one in of_glance if one.group_name == glance.GROUP), None)
    if streaming is None:
        return Sources(sources, configured)
    folder = pathlib.Path(conf.acstor_agent.cache_dir)
    copies = download_source.DownloadSource(streaming, folder, nursery, random.Random(), elsewhere)
    images = layout_source.LayoutSource(copies, layout_of, nursery, decoding)
    return Sources(sources, configured, copies, images)


def _load(name: str) -> type[driver_.Driver]:
    try:
        manager: stevedore.DriverManager[type[driver_.Driver]] = stevedore.DriverManager(
            agent_conf.SOURCES_NAMESPACE, name
        )
    except stevedore.exception.NoMatches as error:
        remedy = _NOT_MADE.get(name, "") + _installed()
        raise errors.Unusable(_OPTION, f"there is no source {name!r}", remedy) from error
    except Exception as error:  # the import of somebody else's module can raise anything
        why = f"the source {name!r} cannot be loaded: {type(error).__name__}: {error}"
        raise errors.Unusable(_OPTION, why, _installed()) from error
    driver = manager.driver
    if not (isinstance(driver, type) and issubclass(driver, driver_.Driver)):
        raise errors.Unusable(_OPTION, f"{name!r} is no source: {driver!r}", _installed())
    if inspect.isabstract(driver):
        lacks = ", ".join(sorted(driver.__abstractmethods__))
        remedy = "It was written for another version of acstor"
        raise errors.Unusable(_OPTION, f"the source {name!r} lacks {lacks}", remedy)
    return driver


def _installed() -> str:
    names = stevedore.ExtensionManager(agent_conf.SOURCES_NAMESPACE).entry_points_names()
    return f"Installed are: {', '.join(sorted(names)) or 'none'}"
