# SPDX-License-Identifier: Apache-2.0
"""A server that libvirt lists but does not describe is unknown, not gone; libvirt is real.

Faults of a hanging QEMU are injected into libvirt's call for a description.
"""

import contextlib
import pathlib
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import libvirt
import pytest

from acstor_checkpoint.capture.domains import domain_list
from acstor_checkpoint.capture.domains import domain_xml
from acstor_checkpoint.capture.domains import libvirt_link
from acstor_common import errors
from acstor_common.model import ids
from tests.lab import runs

IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
SERVERS = [ids.ImageId(f"5b0d3a5e-3c1f-4f0e-8d57-5d1f0c2a7e2{n}") for n in range(8)]
OTHER = ids.ImageId("5b0d3a5e-3c1f-4f0e-8d57-5d1f0c2a7eff")
QUICK = libvirt_link.LibvirtLimits(call_s=1.0, describe_s=0.05)
_DOMAIN = """\
<domain type='test'>
  <name>instance-{instance}</name><uuid>{instance}</uuid>
  <metadata>
    <nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
      <nova:owner><nova:project uuid="p">p</nova:project></nova:owner>
    </nova:instance>
  </metadata>
  <memory unit='MiB'>8</memory><vcpu>1</vcpu><os><type>hvm</type></os>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2'/>
      <source file='/{instance}/{file}'/><target dev='vda' bus='virtio'/>
    </disk>
  </devices>
</domain>
"""


class Libvirt:
    """A libvirt with eight servers and a domain whose disk has no mirror.

    :ivar faults: called instead of describing a server
    """

    def __init__(self, folder: pathlib.Path, limits: libvirt_link.LibvirtLimits) -> None:
        self.faults: dict[str, Callable[[], str]] = {}
        self.ended = threading.Event()
        domains = [_DOMAIN.format(instance=one, file="disk") for one in SERVERS]
        domains.append(_DOMAIN.format(instance=OTHER, file="data"))
        path = folder / "node.xml"
        path.write_text(f"<node>{''.join(domains)}</node>")
        self.domains = domain_list.Domains(f"test://{path}", lambda _: IMAGE, limits=limits)
        self._describe = libvirt.virDomain.XMLDesc

    def describe(self, domain: Any, flags: int = 0) -> str:
        fault = self.faults.get(domain.UUIDString())
        if fault == self.describe_slowly:
            time.sleep(0.4)
            fault = None
        return fault() if fault else self._describe(domain, flags)

    def describe_slowly(self) -> str:
        """Marks a server whose description is slow."""
        raise NotImplementedError

    def hang(self) -> str:
        self.ended.wait(60.0)
        raise error(libvirt.VIR_ERR_OPERATION_TIMEOUT)

    def listed(self) -> tuple[set[str], set[str]]:
        """Return the described servers and the undescribed ones."""
        found = self.domains.list_servers()
        return {server.instance for server in found.servers}, set(found.undescribed)

    def answers(self) -> bool:
        with contextlib.suppress(errors.Unusable):
            return self.listed() == (set(SERVERS), set())
        return False


def error(code: int) -> libvirt.libvirtError:
    made = libvirt.libvirtError("it fails")
    made.err = (code, 0, "it fails", 0, None, None, None, 0, 0)
    return made


def fail(code: int, after_s: float = 0.0) -> Callable[[], str]:
    def raise_error() -> str:
        time.sleep(after_s)
        raise error(code)

    return raise_error


@pytest.fixture
def limits() -> libvirt_link.LibvirtLimits:
    return libvirt_link.LibvirtLimits(call_s=1.0)


@pytest.fixture
def here(
    tmp_path: pathlib.Path, limits: libvirt_link.LibvirtLimits, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Libvirt]:
    made = Libvirt(tmp_path, limits)
    monkeypatch.setattr(
        libvirt.virConnect, "setKeepAlive", lambda *_: 0
    )  # not supported by the test driver
    monkeypatch.setattr(libvirt.virDomain, "XMLDesc", lambda *of: made.describe(*of))
    yield made
    made.ended.set()


def test_servers_are_those_with_a_disk_on_a_mirror(here: Libvirt) -> None:
    assert here.listed() == (set(SERVERS), set())


@pytest.mark.expect_log("does not describe it now")
def test_hanging_server_is_unknown_and_delays_one_list(here: Libvirt) -> None:
    here.faults[SERVERS[0]] = here.hang
    with pytest.raises(errors.Unusable):
        here.listed()
    for _ in range(3):
        began_s = time.monotonic()
        assert here.listed() == (set(SERVERS[1:]), {SERVERS[0]})
        assert time.monotonic() - began_s < 0.9
    here.faults.clear()
    here.ended.set()
    runs.wait_for(here.answers, 10.0, "the description of all", str)


@pytest.mark.expect_log("does not describe it now")
@pytest.mark.parametrize(
    "fault", [fail(libvirt.VIR_ERR_OPERATION_TIMEOUT), lambda: "<domain", lambda: "<!"]
)
def test_server_without_a_description_is_unknown_until_described_once(
    here: Libvirt, fault: Callable[[], str]
) -> None:
    here.faults[SERVERS[0]] = fault
    assert here.listed() == (set(SERVERS[1:]), {SERVERS[0]})
    here.faults.clear()
    runs.wait_for(here.answers, 10.0, "the description of all", str)
    here.faults[SERVERS[0]] = fault
    assert here.listed() == (set(SERVERS), set())  # from the last list


def test_server_deleted_during_a_list_is_gone(here: Libvirt) -> None:
    assert here.answers()
    here.faults[SERVERS[0]] = fail(libvirt.VIR_ERR_NO_DOMAIN)
    assert here.listed() == (set(SERVERS[1:]), set())


def test_list_fails_completely_while_its_connection_is_lost(
    here: Libvirt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A libvirtd that restarts during a list makes no server unknown."""
    for one in SERVERS[4:]:
        here.faults[one] = fail(libvirt.VIR_ERR_RPC)
    with monkeypatch.context() as lost:
        alive = iter((True,))
        lost.setattr(libvirt.virConnect, "isAlive", lambda _: next(alive, False))
        here.domains._link("").connection = libvirt.open(here.domains.uri)
        with pytest.raises(errors.Unusable, match="libvirt_uri"):
            here.listed()
    here.faults.clear()
    assert here.answers()


@pytest.mark.expect_log("does not describe it now")
@pytest.mark.parametrize("limits", [QUICK])
def test_servers_that_time_out_delay_only_the_first_lists(here: Libvirt) -> None:
    """libvirt times out a description after half a minute; all in turn would take too long."""
    for one in SERVERS[1:]:
        here.faults[one] = fail(libvirt.VIR_ERR_OPERATION_TIMEOUT, 0.4)
    for _ in SERVERS:
        with contextlib.suppress(errors.Unusable):
            here.listed()
    began_s = time.monotonic()
    assert here.listed() == ({SERVERS[0]}, set(SERVERS[1:]))
    assert time.monotonic() - began_s < len(SERVERS) * 0.05 + 0.4


@pytest.mark.allow_log("does not describe it now")
@pytest.mark.parametrize("limits", [QUICK._replace(slow_s=0.2)])
def test_slowly_described_servers_delay_only_the_first_lists(
    here: Libvirt,
) -> None:
    """A QEMU may repeatedly answer just before libvirt times out."""
    for one in SERVERS[1:]:
        here.faults[one] = here.describe_slowly
    runs.wait_for(here.answers, 20.0, "the description of all", str)
    for _ in range(3):
        began_s = time.monotonic()
        assert here.listed() == (set(SERVERS), set())
        assert time.monotonic() - began_s < len(SERVERS) * 0.05 + 0.4


@pytest.mark.expect_log("does not describe it now")
def test_server_is_gone_when_libvirt_no_longer_lists_it(here: Libvirt) -> None:
    here.faults[SERVERS[0]] = fail(libvirt.VIR_ERR_OPERATION_TIMEOUT)
    assert here.listed()[1] == {SERVERS[0]}
    domain = here.domains._link("").connection.lookupByUUIDString(SERVERS[0])
    domain.destroy()
    domain.undefine()
    assert here.listed() == (set(SERVERS[1:]), set())


def test_server_names_include_undescribed_servers() -> None:
    disk = domain_xml.RootDisk("vda", "/disk", IMAGE)
    known = domain_xml.Server(SERVERS[0], "p", disk, {}, False)
    found = domain_xml.ServerList([known], frozenset(SERVERS[1:2]))
    assert found.instances() == set(SERVERS[:2])
