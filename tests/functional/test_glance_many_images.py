# SPDX-License-Identifier: Apache-2.0
"""Time and memory of commands that scan ten thousand images of a real Glance.

One image is uploaded and prepared; the others are copies of its rows in Glance's database, with ids
of their own, and share its bytes.

"""

import contextlib
import json
import pathlib
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import pytest

from acstor_common.image import artefacts
from acstor_glance.client import glance_client
from tests.fakes import glance_options
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import uploads

pytestmark = pytest.mark.nightly  # it scans 10,000 images three times

FEW, MANY, UNPREPARED = 200, 10_000, 20
MOST_BYTES_OF_IMAGE = {"prepare": 500, "check": 500, "reconcile": 2000}
"""Memory in bytes that a command may use for each image, beyond its base usage."""
COPIED = "copied for a test"
COPIES = "acstor_test_copies"
"""Table with the ids of the copies and of their chunk maps."""


class Run(NamedTuple):
    """Output and peak memory of a command."""

    rows: list[dict[str, Any]]
    peak_bytes: int


def run(options: acstor_glance.Listener, count: int, *words: str, status: int = 0) -> Run:
    """Run a command over so many images, and print its time and memory."""
    command = [sys.executable, "-W", "ignore", "-m", "acstor_glance.cmd.manage", "--config-file"]
    began_s, used_s, peak_bytes = time.monotonic(), processor_s(), 0
    said = options.conf_file.with_suffix(".said")
    with said.open("wb") as file:
        process = subprocess.Popen([*command, options.conf_file, "--json", *words], stdout=file)
        try:
            while process.poll() is None:
                peak_bytes = max(peak_bytes, high_water_bytes(process.pid))
                time.sleep(0.05)
        finally:
            process.kill()
            process.wait()
    took_s, used_s = time.monotonic() - began_s, processor_s() - used_s
    print(
        f"{count} images, {words[0]}: {took_s:.1f} s, of them {used_s:.1f} s of the processor; "
        f"{peak_bytes / 1e6:.1f} MB",
        flush=True,
    )
    assert process.returncode == status
    return Run([json.loads(line) for line in said.read_text().splitlines()], peak_bytes)


def processor_s() -> float:
    """Return the processor time of finished commands."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def high_water_bytes(pid: int) -> int:
    """Return the peak memory of a process; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


class Copies:
    """Images that exist only in Glance's database.

    :param image_id: the prepared image that they copy

    """

    def __init__(self, glance: uploads.Images, image_id: str) -> None:
        self._database = glance.lab.mariadb
        self._image_id = image_id
        self._map_id = glance.record(image_id)[artefacts.Kind.CHUNK_MAP.pointer]

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        return self._database.execute(*statements, database="glance")

    def add(self, count: int, *, is_prepared: bool) -> None:
        """Add images, each a minute older than the one before, with or without chunk maps."""
        self.execute(
            f"CREATE OR REPLACE TABLE {COPIES} (image VARCHAR(36), map VARCHAR(36), n INT)",
            f"INSERT INTO {COPIES} SELECT UUID(), UUID(), seq FROM seq_1_to_{count}",
            *self._rows(self._image_id, "image", f"'{COPIED}'", is_prepared=is_prepared),
        )
        if is_prepared:
            name = f"REPLACE('{artefacts.name_of(artefacts.Kind.CHUNK_MAP, '@')}', '@', c.image)"
            self.execute(*self._rows(self._map_id, "map", name, is_prepared=True))

    def _rows(self, of: str, own_id: str, name: str, *, is_prepared: bool) -> Iterator[str]:
        made_at = "DATE_SUB(t.created_at, INTERVAL c.n MINUTE)"
        own = {"id": f"c.{own_id}", "name": name, "created_at": made_at}
        yield self._copied("images", f"t.id = '{of}'", own)
        of_image = f"t.image_id = '{of}'"
        yield self._copied("image_locations", of_image, {"image_id": f"c.{own_id}"})
        value = (
            f"CASE t.name WHEN '{artefacts.Kind.CHUNK_MAP.pointer}' THEN c.map WHEN "
            f"'{artefacts.STATE_OF}' THEN c.image WHEN '{artefacts.OF_IMAGE}' THEN c.image "
            "ELSE t.value END"
        )
        if is_prepared:
            changed = {"image_id": f"c.{own_id}", "value": value}
            yield self._copied("image_properties", of_image, changed)

    def _copied(self, table: str, which: str, changed: dict[str, str]) -> str:
        found = self.execute(f"SHOW COLUMNS FROM {table}")
        names = [row[0] for row in found if "auto_increment" not in row[5]]
        values = ", ".join(changed.get(name, f"t.`{name}`") for name in names)
        columns = ", ".join(f"`{name}`" for name in names)
        return (
            f"INSERT INTO {table} ({columns}) SELECT {values} "
            f"FROM {table} t, {COPIES} c WHERE {which}"
        )

    def delete(self) -> None:
        """Delete all copies and their new artefacts."""
        of_image = f"name = '{artefacts.OF_IMAGE}' AND value <> '{self._image_id}'"
        self.execute(
            f"CREATE OR REPLACE TABLE {COPIES} (id VARCHAR(36) PRIMARY KEY)",
            f"INSERT INTO {COPIES} SELECT id FROM images WHERE name = '{COPIED}'",
            f"INSERT IGNORE INTO {COPIES} SELECT image_id FROM image_properties WHERE {of_image}",
            *(
                f"DELETE t FROM {table} t JOIN {COPIES} c ON t.{name} = c.id"
                for table, name in [
                    ("image_properties", "image_id"),
                    ("image_locations", "image_id"),
                    ("image_tags", "image_id"),
                    ("image_members", "image_id"),
                    ("images", "id"),
                ]
            ),
            f"DROP TABLE {COPIES}",
        )


@pytest.fixture
def options(glance: uploads.Images, tmp_path: pathlib.Path) -> acstor_glance.Listener:
    """Return the configuration of a listener that is never started."""
    made = acstor_glance.Listener("unused", glance.lab, tmp_path)
    made.configure()
    return made


@pytest.fixture
def copies(glance: uploads.Images, options: acstor_glance.Listener) -> Iterator[Copies]:
    image_id = glance.upload(uploads.some_bytes(chunks=8))
    uploads.manage(options, "prepare")
    made = Copies(glance, image_id)
    try:
        yield made
    finally:
        made.delete()


def go_through_all(options: acstor_glance.Listener, count: int) -> dict[str, Run]:
    """Run the commands that scan all images, of which UNPREPARED start unprepared."""
    prepared = run(options, count, "prepare")
    assert [row["outcome"] for row in prepared.rows] == ["prepared"] * UNPREPARED
    checked = run(options, count, "check", status=3)
    assert [row["images"] for row in checked.rows if row.get("reason") == "served"] == [count]
    reconciled = run(options, count, "reconcile")
    assert reconciled.rows == []
    return {"prepare": prepared, "check": checked, "reconcile": reconciled}


def test_memory_of_commands_grows_little_with_ten_thousand_images(
    copies: Copies, options: acstor_glance.Listener
) -> None:
    copies.add(FEW - UNPREPARED - 1, is_prepared=True)
    copies.add(UNPREPARED, is_prepared=False)
    few = go_through_all(options, FEW)
    copies.add(MANY - FEW - UNPREPARED, is_prepared=True)
    copies.add(UNPREPARED, is_prepared=False)
    many = go_through_all(options, MANY)
    for name, most_bytes in MOST_BYTES_OF_IMAGE.items():
        more = many[name].peak_bytes - few[name].peak_bytes
        print(f"{name}: {more / (MANY - FEW):.0f} bytes more for each image")
        assert more / (MANY - FEW) < most_bytes


def test_list_is_complete_though_images_are_deleted_meanwhile(
    copies: Copies, options: acstor_glance.Listener
) -> None:
    copies.add(2 * glance_client.PAGE_IMAGES, is_prepared=False)
    wanted = [
        str(row[0])
        for row in copies.execute(f"SELECT id FROM images WHERE name = '{COPIED}' ORDER BY id")
    ]
    images = glance_client.connect(glance_options.conf(options.conf_file))
    listed = images.list_images("id", name=COPIED)
    found = [next(listed).id]
    last = tuple(wanted[glance_client.PAGE_IMAGES - 2 : glance_client.PAGE_IMAGES])
    copies.execute(f"UPDATE images SET deleted = 1, status = 'deleted' WHERE id IN {last}")
    assert found + [image.id for image in listed] == wanted
