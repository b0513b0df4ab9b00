# SPDX-License-Identifier: Apache-2.0
"""Domains that are Nova servers, their root disks, and possible holders."""

import os

import pytest

from acstor_checkpoint import agent_files
from acstor_checkpoint.capture import overlay
from acstor_checkpoint.capture.domains import domain_xml
from acstor_checkpoint.holders import holder_pool
from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.formats import chunk_map_header
from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_common.model import ids
from tests.fakes import manual_clock

IMAGE = ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
INSTANCE = "8d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"
NOVA = """\
<metadata><nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
  <nova:flavor name="f"><nova:extraSpecs>
    <nova:extraSpec name="acstor:checkpoint_interval_s">60</nova:extraSpec>
  </nova:extraSpecs></nova:flavor>
  <nova:owner><nova:project uuid="p1">a</nova:project></nova:owner>
</nova:instance></metadata>
"""
DISK = """\
<disk type='file' device='{device}'><driver name='qemu' type='{format}'/>
<source file='{path}'/><target dev='{target}'/></disk>
"""
AGENT = "<channel><target type='virtio' name='org.qemu.guest_agent.0' state='{state}'/></channel>"


def xml(*parts, nova=NOVA, instance=INSTANCE):
    return f"<domain><uuid>{instance}</uuid>{nova}<devices>{''.join(parts)}</devices></domain>"


def disk(path, target="vda", device="disk", format="qcow2"):
    return DISK.format(path=path, target=target, device=device, format=format)


def base_of(path):
    return IMAGE if path.endswith("/disk") else None


def test_only_the_root_disk_on_a_mirror_is_captured():
    text = xml(
        disk("/i/disk.config", "hda", "cdrom", "raw"),
        "<disk type='network' device='disk'><target dev='vdc'/></disk>",
        "<disk type='file' device='disk'/>",
        disk("/i/disk.eph0", "vdb"),
        disk("/i/raw/disk", "vdd", format="raw"),
        disk("/i/disk"),
        AGENT.format(state="disconnected"),
    )
    server = domain_xml.parse(text, base_of)
    assert server.disk == ("vda", "/i/disk", IMAGE)
    assert (server.instance, server.project) == (INSTANCE, "p1")
    assert server.extra_specs == {"acstor:checkpoint_interval_s": "60"} and not server.has_agent
    connected = domain_xml.parse(xml(disk("/i/disk"), AGENT.format(state="connected")), base_of)
    assert connected.has_agent


def test_rescue_disk_is_not_captured():
    rescued = xml(disk("/i/disk.rescue"), disk("/i/disk", "vdb"))
    assert domain_xml.parse(rescued, lambda _path: IMAGE).disk == ("vdb", "/i/disk", IMAGE)
    assert domain_xml.parse(xml(disk("/i/disk.rescue")), lambda _path: IMAGE) is None


@pytest.mark.parametrize(
    "text",
    [
        xml(disk("/i/disk"), nova=""),
        xml(disk("/i/disk"), nova=NOVA.replace('uuid="p1"', "")),
        xml(disk("/i/disk"), nova=NOVA.replace("p1", "p" * 65)),
        xml(disk("/i/disk"), instance="none"),
        xml(disk("/i/other")),
        xml(),
    ],
)
def test_domain_not_of_nova_or_without_a_mirror_is_no_server(text):
    assert domain_xml.parse(text, base_of) is None


def test_base_of_a_malformed_overlay_is_unknown(tmp_path):
    mirrors = tmp_path / "images"
    name = str(tmp_path / "base").encode()
    (tmp_path / "base").symlink_to(mirrors / f"{IMAGE}.raw")
    head = b"QFI\xfb" + (3).to_bytes(4, "big") + (20).to_bytes(8, "big")
    good = head + len(name).to_bytes(4, "big") + name
    cases = {
        good: IMAGE,
        good[:-1]: None,
        good[:10]: None,
        b"QCOW" + good[4:]: None,
        head + (1 << 20).to_bytes(4, "big") + name: None,
        b"": None,
    }
    for number, (raw, wanted) in enumerate(cases.items()):
        path = tmp_path / f"disk{number}"
        path.write_bytes(raw)
        assert overlay.base_of(str(path), str(mirrors)) == wanted, number
    assert overlay.base_of(str(tmp_path / "disk0"), "/other") is None
    with pytest.raises(errors.Unusable):
        list(overlay.allocated_ranges(str(tmp_path / "none")))
    with pytest.raises(errors.Unusable):
        list(overlay.allocated_ranges(str(tmp_path / "disk0")))
    with pytest.raises(errors.Unusable):
        overlay.stamp(str(tmp_path / "none"))


def test_stamp_detects_a_write_with_a_reset_mtime(tmp_path):
    path = tmp_path / "disk"
    path.write_bytes(b"before")
    before, times = overlay.stamp(str(path)), path.stat()
    path.write_bytes(b"behind")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = overlay.stamp(str(path))
    assert after.mtime_ns == before.mtime_ns and after != before


def test_maps_and_ring_table_are_read_from_the_agents_files(tmp_path):
    files = agent_files.AgentFiles(tmp_path, None)
    with pytest.raises(errors.Unusable, match="chunk map is not on this host"):
        files.read_image(IMAGE)
    with pytest.raises(errors.Unusable, match="no v-node table"):
        files.read_ring()
    subject = chunk_map.Subject(
        IMAGE,
        geometry.Geometry(1 << 20, 65536),
        chunk_map.UNKNOWN_OS_HASH,
        (),
        layout.raw_file(1 << 20),
    )
    (tmp_path / "maps").mkdir()
    path = tmp_path / "maps" / f"{IMAGE}.acmap"
    path.write_bytes(chunk_map_header.header_bytes(subject, chunk_map.Tables(1, 1)) + bytes(9))
    assert files.read_image(IMAGE) == subject
    path.write_bytes(bytes(2000))
    with pytest.raises(errors.Unusable, match="chunk map is not on this host"):
        files.read_image(IMAGE)
    for raw in (b"", b"{}", b"[" * 1000):
        (tmp_path / "ring.json").write_bytes(raw)
        with pytest.raises(errors.Unusable, match="no v-node table"):
            files.read_ring()


TABLE = b"""{"version": 1, "epoch": 3, "hosts": [
  {"host": "h1", "address": "192.0.2.1:7201", "vnodes": 8},
  {"host": "h2", "address": "[2001:db8::2]:7201", "vnodes": 8},
  {"host": "h3", "address": "192.0.2.3:7201", "vnodes": 8}]}"""


def test_holders_are_hosts_of_the_table_without_a_recent_failure(tmp_path):
    (tmp_path / "ring").write_bytes(TABLE)
    files, now_s = agent_files.AgentFiles(tmp_path, tmp_path / "ring"), [5.0]
    places = holder_pool.HolderPool(
        ids.HostId("h1"), files, None, 7202, clock=manual_clock.FunctionClock(lambda: now_s[0])
    )
    both = {"h2": "[2001:db8::2]:7202", "h3": "192.0.2.3:7202"}
    assert dict(places.choose_holders(IMAGE, 2, [])) == dict(places.other_hosts()) == both
    places.record_failure(ids.HostId("h2"), is_costly=False)
    assert dict(places.choose_holders(IMAGE, 2, [ids.HostId("h2")])) == {"h3": both["h3"]}
    now_s[0] += 601.0
    assert places.choose_holders(IMAGE, 2, [ids.HostId("h2")])[0].host == "h2"


def test_holder_with_costly_failures_backs_off_ever_longer(tmp_path):
    """A holder that repeatedly acknowledges chunks and then fails costs one full read a day."""
    (tmp_path / "ring").write_bytes(TABLE)
    files, now_s, h2 = agent_files.AgentFiles(tmp_path, tmp_path / "ring"), [5.0], ids.HostId("h2")
    places = holder_pool.HolderPool(
        ids.HostId("h1"),
        files,
        None,
        7202,
        [h2],
        clock=manual_clock.FunctionClock(lambda: now_s[0]),
    )
    pauses_s = []
    for failures in range(12):
        places.record_failure(h2, is_costly=True)
        places.record_failure(h2, is_costly=True)  # another disk at the same time
        failed_s = now_s[0]
        while not places.choose_holders(IMAGE, 2, []):
            now_s[0] += 300.0
        pauses_s.append(now_s[0] - failed_s)
        if failures % 2:
            places.record_failure(h2, is_costly=False)  # does not reset the backoff
            now_s[0] += holder_pool.FIRST_BACKOFF_S
            assert places.choose_holders(IMAGE, 2, [])
    assert pauses_s == [min(600.0 * 2**n, 86400.0) for n in range(12)]
    now_s[0] += holder_pool.MAX_BACKOFF_S
    places.record_failure(h2, is_costly=True)
    now_s[0] += holder_pool.FIRST_BACKOFF_S
    assert places.choose_holders(IMAGE, 2, [])


def test_holders_can_be_restricted_to_named_hosts(tmp_path):
    (tmp_path / "ring").write_bytes(TABLE)
    files, here = agent_files.AgentFiles(tmp_path, tmp_path / "ring"), ids.HostId("h1")
    places = holder_pool.HolderPool(here, files, None, 7202, allowed=[ids.HostId("h3")])
    assert [holder.host for holder in places.choose_holders(IMAGE, 2, [ids.HostId("h2")])] == ["h3"]
    assert len(places.other_hosts()) == 2  # former holders delete their chunks
