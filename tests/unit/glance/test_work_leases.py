# SPDX-License-Identifier: Apache-2.0
"""Leases: one process at a time works on an image; a lease ends with its holder."""

import multiprocessing
import os
import pathlib
import time
import uuid
from multiprocessing.synchronize import Event

import pytest

from acstor_common import errors
from acstor_common.model import ids
from acstor_glance.client import work_leases
from tests.fakes import silent_server

ONE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
OTHER = ids.parse_image_id("0c9e3f7a-1111-4222-8333-444455556666")


def hold(folder: pathlib.Path, has_it: Event) -> None:
    with work_leases.WorkLeases(None, folder, "chunk_map").lease_image(ONE) as is_ours:
        if is_ours:
            has_it.set()
        multiprocessing.Event().wait()


def test_lease_of_an_image_is_exclusive(tmp_path: pathlib.Path) -> None:
    mine, yours = (work_leases.WorkLeases(None, tmp_path, "chunk_map") for _ in range(2))
    with (
        mine.lease_image(ONE) as first,
        mine.lease_image(ONE) as again,
        yours.lease_image(ONE) as theirs,
    ):
        assert (first, again, theirs) == (True, False, False)
        with yours.lease_image(OTHER) as other:
            assert other
    with yours.lease_image(ONE) as later:
        assert later


def test_leases_of_an_image_for_different_work_are_independent(tmp_path: pathlib.Path) -> None:
    chunk_maps, boot_images = (
        work_leases.WorkLeases(None, tmp_path, what) for what in ("map", "boot")
    )
    with chunk_maps.lease_image(ONE) as first, boot_images.lease_image(ONE) as second:
        assert (first, second) == (True, True)


def test_lease_ends_when_its_holder_is_killed(tmp_path: pathlib.Path) -> None:
    context = multiprocessing.get_context("spawn")
    has_it = context.Event()
    holder = context.Process(target=hold, args=(tmp_path, has_it))
    holder.start()
    try:
        assert has_it.wait(60)
        mine = work_leases.WorkLeases(None, tmp_path, "chunk_map")
        with mine.lease_image(ONE) as is_ours:
            assert not is_ours
        holder.kill()
        holder.join(60)
        with mine.lease_image(ONE) as is_ours:
            assert is_ours
    finally:
        holder.kill()
        holder.join()


def test_error_of_an_unreachable_coordination_service_hides_its_password() -> None:
    url = "etcd3+http://user:secret@127.0.0.1:1/?timeout=1"
    away = work_leases.WorkLeases(url, pathlib.Path("/nowhere"), "chunk_map")
    with pytest.raises(errors.ImageServiceUnreachable) as caught, away.lease_image(ONE):
        pass
    assert "secret" not in str(caught.value)


def test_hung_coordination_service_times_out(tmp_path: pathlib.Path) -> None:
    with silent_server.serve() as server:
        url = f"mysql://root@{server.address}/db"
        hung = work_leases.WorkLeases(url, tmp_path, "chunk_map", answer_s=0.5)
        began_s = time.monotonic()
        for _ in range(3):
            with (
                pytest.raises(errors.ImageServiceUnreachable, match=r"within 0.5 s .*coordination"),
                hung.lease_image(ONE),
            ):
                pytest.fail("it was claimed")
        assert time.monotonic() - began_s < 10
        assert server.connections == 1


def test_files_of_old_leases_are_removed_and_can_be_taken_again(tmp_path: pathlib.Path) -> None:
    mine = work_leases.WorkLeases(None, tmp_path, "chunk_map")
    boot_images = work_leases.WorkLeases(None, tmp_path, "boot_image")
    images = [ids.parse_image_id(str(uuid.UUID(int=number))) for number in range(20)]
    for image_id in images:
        with mine.lease_image(image_id) as is_ours:
            assert is_ours
    with boot_images.lease_image(ONE):
        pass
    assert mine.remove_older(3600.0) == 0
    before = {path.name for path in (tmp_path / "claims").iterdir()}
    old_s = time.time() - 7200
    for path in (tmp_path / "claims").glob("acstor-*"):
        os.utime(path, (old_s, old_s))
    assert mine.remove_older(3600.0) == len(images) + 1
    left = {path.name for path in (tmp_path / "claims").iterdir()}
    assert len(before - left) == len(images) + 1
    with mine.lease_image(images[0]) as is_ours:
        assert is_ours


def test_leases_at_a_service_remove_no_local_files(tmp_path: pathlib.Path) -> None:
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / f"acstor-chunk_map-{ONE}").touch()
    os.utime(tmp_path / "claims" / f"acstor-chunk_map-{ONE}", (0, 0))
    elsewhere = work_leases.WorkLeases(f"file://{tmp_path}/elsewhere", tmp_path, "chunk_map")
    assert elsewhere.remove_older(3600.0) == 0
