# SPDX-License-Identifier: Apache-2.0
"""No qcow2 file gets a chunk map that Nova's own inspection of downloads would refuse.

The inspection is that of the installed Nova, in a process of its virtualenv.

"""

import json
import pathlib
import subprocess

import pytest

from acstor_common import errors
from acstor_common.formats import layout
from acstor_common.model import ids
from acstor_glance.prepare import prehash
from tests.fakes import qcow2_corpus
from tests.lab.openstack import installed

IMAGE_ID = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
FEATURES_END = 80
PROGRAM = """
import json, sys
from nova import exception
from nova.virt import images

def takes(path):
    try:
        images.do_image_deep_inspection({"disk_format": "qcow2"}, path, path)
    except exception.ImageUnacceptable:
        return False
    return True

print(json.dumps({path: takes(path) for path in sys.argv[1:]}))
"""
TAKEN = (
    "plain-65536",
    "deflate-65536",
    "zstd-65536",
    "written-512",
    "v2-deflate-65536",
    "dirty",
    "snapshots",
    "with-bitmap",
)

pytestmark = [
    pytest.mark.skipif(
        not installed.is_ready(),
        reason=f"the services of OpenStack are not installed: {installed.REMEDY}",
    ),
    pytest.mark.skipif(not qcow2_corpus.HAS_TOOLS, reason="qemu-img and qemu-io are not installed"),
]


def with_feature(image: pathlib.Path, bit: int) -> None:
    """Set an incompatible feature bit in the file's header."""
    data = bytearray(image.read_bytes())
    features = int.from_bytes(data[FEATURES_END - 8 : FEATURES_END], "big") | 1 << bit
    data[FEATURES_END - 8 : FEATURES_END] = features.to_bytes(8, "big")
    image.write_bytes(data)


def make_all(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Make files of which Nova accepts some, by their peculiarity."""
    made = {}
    for variant in qcow2_corpus.variants():
        if variant.name in TAKEN or variant.name == "subclusters-deflate-65536":
            (folder / variant.name).mkdir()
            made[variant.name] = variant.make(folder / variant.name)
    others = {"backed": ("-b", made["plain-65536"], "-F", "qcow2"), "empty": ()}
    others["outside"] = ("-o", f"data_file={folder / 'data'}")
    for name, words in others.items():
        made[name] = folder / f"{name}.qcow2"
        qcow2_corpus.qemu_img("create", "-q", "-f", "qcow2", *words, made[name], "1M")
    for bit in range(64):
        name = f"feature-{bit}"
        made[name] = folder / f"{name}.qcow2"
        made[name].write_bytes(made["empty"].read_bytes())
        with_feature(made[name], bit)
    made["raw"] = folder / "raw"
    made["raw"].write_bytes(b"data" * 100_000)
    return made


def gets_a_map(image: pathlib.Path) -> bool:
    try:
        prehash.prehash(
            image,
            image.with_suffix(".acmap"),
            IMAGE_ID,
            disk_format=layout.DiskFormat.QCOW2,
        )
    except errors.NotRaw:
        return False
    return True


def test_file_that_nova_refuses_gets_no_chunk_map(tmp_path: pathlib.Path) -> None:
    made = make_all(tmp_path)
    command = [installed.BIN / "python", "-W", "ignore", "-c", PROGRAM, *made.values()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    by_path = json.loads(done.stdout)
    nova = {name for name, path in made.items() if by_path[str(path)]}
    acstor = {name for name, path in made.items() if gets_a_map(path)}
    assert acstor == {*TAKEN, "empty", "feature-0"}, "that refcounts are stale is no matter"
    assert acstor <= nova
    assert "subclusters-deflate-65536" not in nova
