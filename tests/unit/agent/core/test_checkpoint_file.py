# SPDX-License-Identifier: Apache-2.0
"""Positions of a checkpoint's chunks in its qcow2 file."""

import random
import types

import pytest

from acstor_agent.core.disks import checkpoint_file
from acstor_agent.disks import checkpoint_reader
from acstor_common.formats import checkpoint_encryption
from acstor_common.formats import checkpoint_manifest as manifest
from acstor_common.model import geometry
from tests.fakes import one_host
from tests.fakes import vault_checkpoints

MIB = geometry.MIB
SEAL = checkpoint_encryption.Seal(vault_checkpoints.KEY)


def made(chunk_bytes, size_bytes, chunks):
    """Return the manifest of a disk with these chunks."""
    cut = geometry.Geometry(size_bytes, chunk_bytes)
    kept = vault_checkpoints.StoredCheckpoint(one_host.IMAGE, cut, chunks)
    plain = SEAL.open_manifest(kept.manifest, manifest.MAX_BYTES)
    return manifest.Manifest.parse(plain, "it")


def test_chunk_is_one_cluster():
    chunks = {1: b"x" * 65536, 3: bytes(65536), 9: b"y" * 512}
    of = made(65536, 9 * 65536 + 512, chunks)
    assert checkpoint_file.cluster_bytes(of) == 65536
    assert list(checkpoint_file.data_clusters(of)) == [1, 9]
    plan = checkpoint_file.plan(of, "/base")
    assert plan.file_bytes - plan.data_at == 2 * 65536
    head = next(iter(plan.iter_tables()))
    assert checkpoint_file.disk_bytes(head) == 9 * 65536 + 512


async def test_chunk_larger_than_a_cluster_spans_two():
    data = random.Random(1).randbytes(4 * MIB)
    of = made(4 * MIB, 9 * MIB, {0: data, 1: bytes(4 * MIB), 2: data[:MIB]})
    assert list(checkpoint_file.data_clusters(of)) == [0, 1, 4]
    plan = checkpoint_file.plan(of, "/base")
    clusters = plan.file_bytes // (2 * MIB)

    async def chunk(name, length):
        assert name == SEAL.chunk_name(data[:length])
        return data[:length]

    shown = checkpoint_reader.CheckpointReader(
        None, of, types.SimpleNamespace(fetch_chunk=chunk), clusters
    )
    assert shown.clusters == range(clusters - 3, clusters)
    got = [await shown.fetch_cluster(cluster) for cluster in shown.clusters]
    assert got == [data[: 2 * MIB], data[2 * MIB :], data[:MIB]]


@pytest.mark.parametrize("backing", ["", "a", "./a", "nbd://a", "/a\0", "/a\n"])
def test_invalid_backing_path_is_refused(backing):
    with pytest.raises(checkpoint_file.errors.Unusable, match="not an absolute path"):
        checkpoint_file.plan(made(65536, 65536, {}), backing)
