# SPDX-License-Identifier: Apache-2.0
import random

import pytest
import stevedore
from oslo_config import cfg

import acstor_agent.conf
from acstor_agent.sources import base
from acstor_agent.sources import source_client
from acstor_agent.sources import source_factory
from acstor_agent.sources.http_client import http_pool
from acstor_agent.sources.wrappers import deadline_source
from acstor_common import errors
from acstor_common.formats import layout
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.service import session_options
from tests.fakes import faulty_source
from tests.fakes import http_server

BLOB = base.Blob(ids.ImageId("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11"), base.BlobKind.IMAGE)
DATA = random.Random(1).randbytes(100_000)
ALWAYS = range(1, 1_000)


def as_stored(image_id):
    """Return a raw layout for every image."""
    cut = geometry.Geometry(len(DATA), geometry.DEFAULT_CHUNK_BYTES)
    return layout.Layout(b"", 0, cut, layout.raw_file(len(DATA)))


@pytest.fixture
def conf(tmp_path):
    conf = cfg.ConfigOpts()
    acstor_agent.conf.register_opts(conf)
    conf([])
    conf.set_override("folder", str(tmp_path), group="source_file")
    return conf


@pytest.fixture
def other_package(tmp_path, monkeypatch):
    """Install a package with invalid sources."""
    package = tmp_path / "site"
    (package / "other-1.0.dist-info").mkdir(parents=True)
    (package / "other-1.0.dist-info" / "METADATA").write_text("Name: other\nVersion: 1.0\n")
    (package / "other-1.0.dist-info" / "entry_points.txt").write_text(
        "[acstor.sources]\nbroken = other_sources:Source\nwrong = json:dumps\n"
        "old = acstor_agent.sources.driver:Driver\n"
    )
    (package / "other_sources.py").write_text("raise RuntimeError('librados is not there')\n")
    monkeypatch.syspath_prepend(str(package))
    monkeypatch.setattr(stevedore.ExtensionManager, "ENTRY_POINT_CACHE", {})


async def test_sources_are_read_in_the_configured_order(conf, tmp_path, nursery):
    (tmp_path / BLOB.file_name).write_bytes(DATA)
    with http_server.serve({BLOB.file_name: DATA}) as server:
        conf.set_override("url", server.url, group="source_http")
        made = source_factory.build(["file", "http"], conf, nursery, as_stored)
        source = source_client.SourceClient(*made)
        assert source.location == f"{tmp_path}, {server.url}"
        assert await source.read(BLOB, 5, 50, ids.Content(ids.cid_of(DATA[5:55]))) == DATA[5:55]
        assert server.asked == []
        (tmp_path / BLOB.file_name).write_bytes(DATA[::-1])
        assert await source.read(BLOB, 5, 50, ids.Content(ids.cid_of(DATA[5:55]))) == DATA[5:55]
        (tmp_path / BLOB.file_name).unlink()
        assert await source.size_bytes(BLOB) == len(DATA)
        assert len(server.asked) == 2
        await source.aclose()


async def test_connections_of_the_driver_bound_the_reads_in_flight(conf, nursery, monkeypatch):
    conf.set_override("url", "http://127.0.0.1:1/", group="source_http")
    monkeypatch.setattr(http_pool, "limits_of", lambda _group: http_pool.HttpLimits(connections=3))
    source = source_client.SourceClient(*source_factory.build(["http"], conf, nursery, as_stored))
    assert source.max_concurrent_reads == 3
    await source.aclose()


async def test_driver_is_retried_and_its_bytes_are_verified(autojump_clock):
    inner = faulty_source.FaultySource(
        faulty_source.MemorySource({BLOB: DATA}), delay=ALWAYS, fail=[1], corrupt=[3]
    )
    source = source_client.SourceClient([deadline_source.DeadlineSource(inner)])

    async def read_chunk():
        assert await source.read(BLOB, 0, 4096, ids.Content(ids.cid_of(DATA[:4096]))) == DATA[:4096]

    await read_chunk()
    assert len(inner.reads) == 2
    with pytest.raises(errors.ChunkInvalid):
        await read_chunk()
    assert len(inner.reads) == 3


async def test_unknown_source_is_named_with_those_installed(conf, nursery):
    why = r"\[acstor_agent\] sources: .*'ftp'.*file, gateway, glance, http"
    with pytest.raises(errors.Unusable, match=why):
        source_factory.build(["file", "ftp"], conf, nursery, as_stored)


async def test_source_rbd_is_refused_with_its_alternatives(conf, nursery):
    why = r"no source 'rbd'.*images_type = rbd.*acstor-glance-gateway"
    with pytest.raises(errors.Unusable, match=why):
        source_factory.build(["rbd", "glance"], conf, nursery, as_stored)


async def test_no_source_at_all_is_refused(conf, nursery):
    why = r"\[acstor_agent\] sources: it is empty.*file, gateway, glance, http"
    with pytest.raises(errors.Unusable, match=why):
        source_factory.build([], conf, nursery, as_stored)


async def test_source_that_does_not_load_is_named_with_its_reason(conf, nursery, other_package):
    with pytest.raises(errors.Unusable, match=r"'broken' .*RuntimeError: librados is not there"):
        source_factory.build(["broken"], conf, nursery, as_stored)


async def test_plug_in_that_is_no_source_is_refused(conf, nursery, other_package):
    with pytest.raises(errors.Unusable, match="'wrong' is not a source"):
        source_factory.build(["wrong"], conf, nursery, as_stored)


async def test_option_that_is_missing_is_named(conf, nursery):
    with pytest.raises(errors.Unusable, match=r"\[source_http\] url"):
        source_factory.build(["http"], conf, nursery, as_stored)


async def test_source_of_another_version_is_refused_with_missing_methods(
    conf, nursery, other_package
):
    with pytest.raises(errors.Unusable, match=r"'old' lacks .*fill.*another version"):
        source_factory.build(["old"], conf, nursery, as_stored)


@pytest.mark.parametrize(
    ("section", "text", "reported"),
    [
        ("source_http", "url = http://u:secret@h/images/", "[source_http], as u"),
        ("source_http", "url = http://h/images/", "[source_http]"),
        ("source_file", "folder = /srv", "[source_file]"),
        (
            "source_glance",
            "auth_url = http://k/v3\nusername = acstor\npassword = secret",
            "[source_glance], as acstor at http://k/v3",
        ),
    ],
)
def test_source_description_omits_the_password(tmp_path, section, text, reported):
    path = tmp_path / "acstor.conf"
    path.write_text(f"[{section}]\n{text}\n")
    found = cfg.ConfigOpts()
    acstor_agent.conf.register_opts(found)
    found([], default_config_files=[str(path)], default_config_dirs=[])
    assert session_options.describe(section, found[section]) == reported
