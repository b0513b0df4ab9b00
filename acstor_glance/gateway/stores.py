# SPDX-License-Identifier: Apache-2.0
"""The stores in ``glance-api.conf``, with their readers."""

import ipaddress
import logging
import re
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import glance_store
from glance_store import driver as store_driver
from glance_store import location as store_location
from oslo_config import cfg

from acstor_common import errors
from acstor_common.model import addresses
from acstor_common.service import tracing
from acstor_glance.gateway import byte_range
from acstor_glance.gateway import gateway_metrics
from acstor_glance.gateway import read_admission
from acstor_glance.gateway.readers import base
from acstor_glance.gateway.readers import offset_reader

LOG = logging.getLogger(__name__)

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]{0,19})://", re.ASCII)
_FORMER = "glance.store."  # former prefix of driver names, as in ``glance.store.s3.Store``


class Location(NamedTuple):
    """A location of an image; ``url`` may hold a password, ``store`` may be empty."""

    url: str
    store: str

    @property
    def scheme(self) -> str:
        """The URL's scheme; empty if it has none."""
        match = _SCHEME.match(self.url)
        return match[1] if match else ""


class Stores:
    """All stores of a configuration (glance_store's global one); raises errors.Unusable."""

    def __init__(self, conf: cfg.ConfigOpts, counters: gateway_metrics.GatewayMetrics) -> None:
        self._conf = conf
        self._enabled = _register(conf)
        glance_store.create_multi_stores(conf)
        self._readers: dict[str, base.Reader] = {}
        self._why_not: dict[str, str] = {}
        for name in self._enabled:
            self._prepare(name)
        self._counters = {
            name: gateway_metrics.StoreMetrics(
                counters,
                name,
                _kind_of(driver),
                read_admission.READS if name in self._readers else 0,
            )
            for name, driver in self._enabled.items()
        }
        self._weights = {name: _weight_of(name) for name in self._enabled}
        self._others = gateway_metrics.StoreMetrics(
            counters, gateway_metrics.OTHER, gateway_metrics.OTHER
        )
        self._admissions = {
            name: read_admission.ReadAdmission(
                name, read_admission.READS, read_admission.TIMEOUT_S, self._counters[name]
            )
            for name in self._readers
        }

    @property
    def default_driver(self) -> str:
        """Driver of the default store; empty if there is none."""
        return _kind_of(self._enabled.get(self._conf.glance_store.default_backend or "", ""))

    def count_fault(self, fault: base.StoreFault) -> None:
        """Count a fault of a store."""
        self._counters.get(fault.store, self._others).count_fault(fault.fault)

    def sort_locations(self, locations: Iterable[Location]) -> list[Location]:
        """Return locations by the weight of their stores here, as Glance does with its own."""
        return sorted(locations, key=lambda location: -self._weights.get(location.store, 0))

    def read(
        self, location: Location, requested: byte_range.ByteRange, project_id: str
    ) -> base.ObjectRange:
        """Read a range of an object; raises base.StoreFault or http_errors.HttpError."""
        name = location.store or self._only_store_of(location)
        reader = self._readers.get(name)
        if reader is None:
            why = self._why_not.get(name, "it is not in enabled_backends of this gateway")
            raise base.RangesUnsupported(
                name, f"the gateway does not read it ({location.scheme}): {why}"
            )
        try:
            place = store_location.get_location_from_uri_and_backend(
                location.url, name, conf=self._conf
            )
        except (glance_store.GlanceStoreException, ValueError) as error:  # ValueError: no URL
            why = f"its location has another scheme ({location.scheme})"
            raise base.RangesUnsupported(name, why) from error
        with tracing.Span("acstor_store_read", store=name) as span:
            part = self._admissions[name].run(
                lambda: self._read(reader, place, requested), project_id
            )
            span.add_results(bytes=len(part.data))
        self._counters[name].count_bytes(len(part.data))
        return part

    def _read(
        self, reader: base.Reader, place: Any, requested: byte_range.ByteRange
    ) -> base.ObjectRange:
        if isinstance(reader, offset_reader.OffsetReader):
            return reader.read(place, requested)
        return reader.read(place.store_location, requested)

    def _only_store_of(self, location: Location) -> str:
        known = store_location.SCHEME_TO_CLS_BACKEND_MAP.get(location.scheme, {})
        names = [str(name) for name in known if name in self._enabled]
        if len(names) == 1:
            return names[0]
        raise base.RangesUnsupported(
            "(not named)",
            f"a location ({location.scheme}) names no store, and {len(names)} have this scheme",
        )

    def _prepare(self, name: str) -> None:
        kind = _kind_of(self._enabled[name])
        try:
            store = glance_store.get_store_from_store_identifier(name)
            self._readers[name] = self._reader(name, kind, store)
        except (glance_store.UnknownScheme, glance_store.BadStoreConfiguration, KeyError) as error:
            self._why_not[name] = f"its configuration cannot be used ({type(error).__name__})"
        except ImportError as error:
            self._why_not[name] = f"a library is missing ({error.name})"
        except errors.Unusable as error:
            self._why_not[name] = error.why
        if name in self._readers:
            LOG.info("store %s (%s): ranges of its images are read", name, kind)
        else:
            LOG.warning("store %s (%s) is not read: %s", name, kind, self._why_not[name])

    def _reader(self, name: str, kind: str, store: Any) -> base.Reader:
        own = self._conf.acstor_gateway
        if kind in _MAKERS:
            options = store_driver.BackendGroupConfiguration(store.OPTIONS, name, conf=self._conf)
            return _MAKERS[kind](name, store, options, own)
        if store.is_capable(glance_store.capabilities.BitMasks.READ_RANDOM):
            find: Callable[[str], Any] = glance_store.get_store_from_store_identifier
            return offset_reader.OffsetReader(name, find)
        raise errors.Unusable(
            name,
            f"its driver {kind} reads only complete images, and the gateway has no other reader",
        )


def _kind_of(driver: str) -> str:
    """Return the short name of a driver: ``s3``, also for ``glance.store.s3.Store``."""
    return driver.removeprefix(_FORMER).partition(".")[0]


def _weight_of(name: str) -> int:
    try:
        return int(glance_store.get_store_weight(name))
    except glance_store.UnknownScheme:  # its driver cannot be loaded
        return 0


def _s3(name: str, _store: Any, options: Any, _own: Any) -> base.Reader:
    from acstor_glance.gateway.readers import s3

    return s3.S3Reader(name, options, read_admission.READS, read_admission.TIMEOUT_S)


def _swift(name: str, store: Any, options: Any, _own: Any) -> base.Reader:
    from acstor_glance.gateway.readers import swift

    if options.swift_store_multi_tenant:
        why = "with swift_store_multi_tenant each image is in its owner's account"
        raise errors.Unusable(name, why)
    return swift.SwiftReader(name, store, read_admission.READS, read_admission.TIMEOUT_S)


def _rbd(name: str, store: Any, _options: Any, _own: Any) -> base.Reader:
    from acstor_glance.gateway.readers import rbd

    return rbd.RbdReader(name, store)


def _web(name: str, _store: Any, options: Any, own: Any) -> base.Reader:
    from acstor_glance.gateway.readers import http_store

    networks = _networks(name, own.internal_web_networks)
    return http_store.WebReader(name, options, read_admission.TIMEOUT_S, networks)


def _networks(name: str, networks: Iterable[str]) -> list[addresses.Network]:
    try:
        return [ipaddress.ip_network(network) for network in networks]
    except ValueError as error:
        raise errors.Unusable(name, f"[acstor_gateway] internal_web_networks: {error}") from error


_MAKERS: Mapping[str, Callable[[str, Any, Any, Any], base.Reader]] = {
    "s3": _s3,
    "swift": _swift,
    "rbd": _rbd,
    "http": _web,
}


def _register(conf: cfg.ConfigOpts) -> dict[str, str]:
    conf.register_opts([cfg.DictOpt("enabled_backends")])
    enabled: dict[str, str] = dict(conf.enabled_backends or {})
    if not enabled:
        raise errors.Unusable(
            "[DEFAULT] enabled_backends",
            "it is not set",
            "Name glance-api.conf, whose stores are read; with the older [glance_store] stores the "
            "gateway does not work",
        )
    glance_store.register_store_opts(conf)
    return enabled
