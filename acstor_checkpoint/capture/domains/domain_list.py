# SPDX-License-Identifier: Apache-2.0
"""The servers of this host according to libvirt."""

import functools
import logging
import threading
import time
from typing import Any

import libvirt

from acstor_checkpoint.capture.domains import domain_xml
from acstor_checkpoint.capture.domains import libvirt_domain
from acstor_checkpoint.capture.domains import libvirt_link
from acstor_common import errors
from acstor_common.model import ids
from acstor_common.util import call_deadline
from acstor_common.util import supervision

LOG = logging.getLogger(__name__)

LibvirtLink = libvirt_link.LibvirtLink


class Domains:
    """libvirt of this host; connects on demand."""

    def __init__(
        self,
        uri: str,
        base_of: domain_xml.FindBase,
        run_dir: str = libvirt_domain.RUN_DIR,
        limits: libvirt_link.LibvirtLimits = libvirt_link.LIMITS,
    ) -> None:
        self.uri, self.base_of = uri, base_of
        self._run_dir, self._limits = run_dir, limits
        self._option = f"[acstor_checkpoint] libvirt_uri = {uri}"
        self._lock = threading.Lock()
        self._opening = call_deadline.CallDeadline("libvirt-open", limits.open_s)
        self._links: dict[str, LibvirtLink] = {}
        self._listed: dict[str, domain_xml.Server] = {}
        self._suspects: dict[str, LibvirtLink] = {}
        """Connections for servers of which a description failed or took long."""

    def list_servers(self) -> domain_xml.ServerList:
        """Return the servers with supported disks, running or not, or raise Unusable.

        libvirt 11 describes no domain while a call waits for its QEMU, so each hung QEMU delays one
        list: its server is listed as it was last, or as undescribed, and from then on is described
        over a connection of its own with a short timeout.
        """
        link = self._link("")
        try:
            found = link.call(self._option, lambda: self._found(link))
        except errors.Unusable as e:
            is_late = isinstance(e.__cause__, call_deadline.CallTimeout) and link.is_busy
            if is_late and link.described and self._links.get("") is link:
                self._note_failure(link.described, e)
                with self._lock:
                    self._links[link.described] = self._links.pop("")
            raise
        with self._lock:
            self._listed = {
                **{key: one for key, one in self._listed.items() if key in found.undescribed},
                **{server.instance: server for server in found.servers},
            }
            here = found.instances()
            self._links = {
                key: one for key, one in self._links.items() if key in {"", *here} or one.is_busy
            }
        return found

    def _found(self, link: LibvirtLink) -> domain_xml.ServerList:
        link.described = ids.ImageId("")
        domains = self._connected(link).listAllDomains()
        named = {ids.ImageId(one.UUIDString()): one for one in domains}
        with self._lock:
            self._suspects = {key: one for key, one in self._suspects.items() if key in named}
        servers, undescribed = list[domain_xml.Server](), set[ids.ImageId]()
        for instance, found in named.items():
            server = self._listed.get(instance)
            is_described = False
            if not self._is_waiting(instance):
                try:
                    server, is_described = self._described(found, instance, link), True
                except errors.Unusable as e:
                    self._note_failure(instance, e)
            if server is not None:
                servers.append(server)
            elif not is_described:
                undescribed.add(instance)
        return domain_xml.ServerList(servers, frozenset(undescribed))

    def _is_waiting(self, instance: ids.ImageId) -> bool:
        own = self._links.get(instance)
        return own is not None and own.is_busy

    def _described(
        self, found: Any, instance: ids.ImageId, link: LibvirtLink
    ) -> domain_xml.Server | None:
        """Return the server of a domain; None if unsupported or deleted, Unusable if malformed."""
        if (own := self._suspects.get(instance)) is not None:
            server = own.call(f"server {instance}", lambda: self._described_later(instance, own))
            own.has_failed = False
            return server
        link.described, began_s = instance, time.monotonic()
        server = self._parsed(found, link)
        if time.monotonic() - began_s > self._limits.slow_s:
            self._suspect(instance)
        return server

    def _described_later(self, instance: ids.ImageId, own: LibvirtLink) -> domain_xml.Server | None:
        """Describe a server over its own connection; a late result is for the next list."""
        server = self._parsed(self._looked_up(own, instance), own)
        if server is not None:
            with self._lock:
                self._listed[instance] = server
        return server

    def _parsed(self, found: Any, link: LibvirtLink) -> domain_xml.Server | None:
        name = f"server {found.UUIDString()}"
        try:
            return domain_xml.parse(found.XMLDesc(), self.base_of)
        except libvirt.libvirtError as e:
            if e.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                return None
            if not link.connection.isAlive():  # no server can be described
                raise
            raise errors.Unusable(name, str(e)) from e
        except Exception as e:
            raise errors.Unusable(name, f"its description is malformed: {e}") from e

    def _suspect(self, instance: ids.ImageId) -> LibvirtLink:
        """Describe a server over a connection of its own from now on; return it."""
        with self._lock:
            return self._suspects.setdefault(instance, LibvirtLink(self._limits.describe_s))

    def _note_failure(self, instance: ids.ImageId, e: errors.Unusable) -> None:
        own = self._suspect(instance)
        if not own.has_failed:
            own.has_failed = True
            LOG.warning("server %s: libvirt does not describe it now: %s", instance, e)
            supervision.count_failure("libvirt")

    def find_domain(self, server: domain_xml.Server) -> libvirt_domain.Domain:
        """Return the domain of a server, or raise Unusable."""
        link, name = self._link(server.instance), f"server {server.instance}"
        look_up = functools.partial(self._looked_up, link, server.instance)
        return libvirt_domain.Domain(link.call(name, look_up), server, self._run_dir, link)

    def _looked_up(self, link: LibvirtLink, instance: ids.ImageId) -> Any:
        return self._connected(link).lookupByUUIDString(instance)

    def _link(self, key: str) -> LibvirtLink:
        """Return the connection of a server; "": of this host."""
        with self._lock:
            return self._links.setdefault(key, LibvirtLink(self._limits.call_s))

    def _connected(self, link: LibvirtLink) -> Any:
        if link.connection is None or not link.connection.isAlive():
            libvirt_link.run_events()
            try:
                link.connection = self._opening.run_call(
                    lambda: libvirt_link.open_connection(self.uri, self._limits)
                )
            except call_deadline.CallTimeout as e:
                raise errors.Unusable(self._option, str(e), "Does libvirt run here?") from e
        return link.connection
