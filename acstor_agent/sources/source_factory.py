# SPDX-License-Identifier: Apache-2.0
"""Creates the configured sources: drivers wrapped in timeouts and layouts."""

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
from acstor_agent.sources import driver
from acstor_agent.sources import glance
from acstor_agent.sources import host_grants
from acstor_agent.sources.wrappers import deadline_source
from acstor_agent.sources.wrappers import decode_threads
from acstor_agent.sources.wrappers import download_source
from acstor_agent.sources.wrappers import layout_source
from acstor_common import errors
from acstor_common.service import session_options

_OPTION = "[acstor_agent] sources"
_NOT_MADE = {
    "rbd": "It would need Ceph's keys on every host, and hosts that have them boot from Ceph by "
    "Nova's own images_type = rbd. For others run acstor-glance-gateway and name the source "
    "gateway. "
}


class Sources(NamedTuple):
    """The sources for a client."""

    sources: Sequence[base.Source]  # wrapped, the preferred one first
    configured: Sequence[str]  # options and user of each source, for operators
    copies: download_source.DownloadSource | None = None  # for blobs without ranges
    read_copies: base.Source | None = None  # copies, with layouts


def build(
    names: Sequence[str],
    conf: cfg.ConfigOpts,
    nursery: trio.Nursery,
    layout_of: layout_source.LayoutOf,
    delegated_host: download_source.DelegatedHost = lambda image_id: "",
    grants: host_grants.HostGrants | None = None,
) -> Sources:
    """Return the sources ``names``, the preferred one first.

    :param nursery: runs reads that callers share; must outlive the source's use
    :raises errors.Unusable: a source is not installed, does not load, or has invalid options
    """
    if not names:
        raise errors.Unusable(_OPTION, "it is empty", _installed())
    drivers = [_load(name).from_conf(conf[f"source_{name}"]) for name in names]
    for backend in drivers:
        backend.prefer_location(conf.acstor_agent.location.split("/"))
        backend.use_grants(grants)
    decoding = decode_threads.DecodeThreads(nursery)
    in_time = [
        deadline_source.DeadlineSource(backend, attempt_timeout.BASE_S) for backend in drivers
    ]
    sources = [
        layout_source.LayoutSource(source, layout_of, nursery, decoding) for source in in_time
    ]
    groups = [f"source_{name}" for name in names]
    configured = [session_options.describe(group, conf[group]) for group in groups]
    of_glance = (backend for backend in drivers if isinstance(backend, glance.GlanceSource))
    streaming = next((backend for backend in of_glance if backend.group_name == glance.GROUP), None)
    if streaming is None:
        return Sources(sources, configured)
    folder = pathlib.Path(conf.acstor_agent.cache_dir)
    copies = download_source.DownloadSource(
        streaming, folder, nursery, random.Random(), delegated_host
    )
    images = layout_source.LayoutSource(copies, layout_of, nursery, decoding)
    return Sources(sources, configured, copies, images)


def _load(name: str) -> type[driver.Driver]:
    try:
        manager: stevedore.DriverManager[type[driver.Driver]] = stevedore.DriverManager(
            agent_conf.SOURCES_NAMESPACE, name
        )
    except stevedore.exception.NoMatches as error:
        remedy = _NOT_MADE.get(name, "") + _installed()
        raise errors.Unusable(_OPTION, f"there is no source {name!r}", remedy) from error
    except Exception as error:  # the import of a plugin can raise anything
        why = f"the source {name!r} cannot be loaded: {type(error).__name__}: {error}"
        raise errors.Unusable(_OPTION, why, _installed()) from error
    driver_class = manager.driver
    if not (isinstance(driver_class, type) and issubclass(driver_class, driver.Driver)):
        raise errors.Unusable(_OPTION, f"{name!r} is not a source: {driver_class!r}", _installed())
    if inspect.isabstract(driver_class):
        lacks = ", ".join(sorted(driver_class.__abstractmethods__))
        remedy = "It was written for another version of acstor"
        raise errors.Unusable(_OPTION, f"the source {name!r} lacks {lacks}", remedy)
    return driver_class


def _installed() -> str:
    names = stevedore.ExtensionManager(agent_conf.SOURCES_NAMESPACE).entry_points_names()
    return f"Installed are: {', '.join(sorted(names)) or 'none'}"
