# SPDX-License-Identifier: Apache-2.0
"""Glance's import continues under any fault of the plugin; taskflow itself runs it here."""

import pathlib
import threading
from typing import Any

import pytest
import taskflow.engines
from oslo_config import cfg
from taskflow.patterns import linear_flow

from acstor_common.formats import chunk_map
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_glance.prepare import import_plugin
from acstor_glance.prepare import prehash
from tests.fakes import glance_options
from tests.fakes import glance_records as records
from tests.fakes import qcow2_bombs
from tests.fakes import qcow2_files


class Wrapper:
    """Glance's argument for plugins, for the image of :mod:`tests.fakes.glance_records`."""

    def __init__(self, **record: Any) -> None:
        self._record = records.record(status="importing", **record)
        self.properties: dict[str, str] = {}
        self.is_broken = False

    def __enter__(self) -> "Wrapper":
        if self.is_broken:
            raise RuntimeError("the image was deleted")
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    @property
    def image_disk_format(self) -> str:
        return str(self._record["disk_format"])

    @property
    def image_container_format(self) -> str:
        return str(self._record["container_format"])

    def set_image_extra_properties(self, properties: dict[str, str]) -> None:
        if "acstor_state" not in properties:
            raise RuntimeError("nothing to say")
        self.properties |= properties


@pytest.fixture
def conf(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> cfg.ConfigOpts:
    scope = "cloud"  # needs no lookup
    conf = glance_options.conf(state_dir=tmp_path / "state", dedup_scope=scope)
    monkeypatch.setattr(import_plugin.cfg, "CONF", conf)
    monkeypatch.setattr(import_plugin.PublishThread, "start", lambda thread: None)
    return conf


@pytest.fixture
def staged(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "staging" / records.IMAGE_ID
    path.parent.mkdir()
    path.write_bytes(records.BYTES)
    return path


def run(wrapper: Wrapper, staged: pathlib.Path) -> None:
    """Run the plugin's flow as Glance does, with the path from an earlier task."""
    run_task(
        import_plugin.get_flow(
            image_id=records.IMAGE_ID,
            task_id="task",
            task_type="api_image_import",
            action_wrapper=wrapper,
        ),
        staged,
    )


def run_task(task: Any, staged: pathlib.Path) -> None:
    flow = linear_flow.Flow("import").add(task)
    taskflow.engines.run(flow, store={"file_path": f"file://{staged}"})


def waiting_maps(tmp_path: pathlib.Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "state/maps").iterdir())


def test_staged_file_is_hashed_and_marked(
    conf: cfg.ConfigOpts, staged: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    wrapper = Wrapper()
    run(wrapper, staged)
    assert wrapper.properties == {
        "acstor_state": "hashed",
        "acstor_state_of": records.IMAGE_ID,
    }
    [name] = waiting_maps(tmp_path)
    found = chunk_map.ChunkMap.parse((tmp_path / "state/maps" / name).read_bytes(), name)
    assert found.image_id == records.IMAGE_ID
    assert found.os_hash_algo == ""


@pytest.mark.parametrize("disk_format", ["vmdk", "iso", "ami", "vhd"])
def test_other_formats_are_refused(
    conf: cfg.ConfigOpts, staged: pathlib.Path, tmp_path: pathlib.Path, disk_format: str
) -> None:
    wrapper = Wrapper(disk_format=disk_format)
    run(wrapper, staged)
    assert wrapper.properties["acstor_state"] == "refused"
    assert f"its disk format is {disk_format}" in wrapper.properties["acstor_message"]
    assert waiting_maps(tmp_path) == []


def test_sparse_file_is_hashed(
    conf: cfg.ConfigOpts,
    staged: pathlib.Path,
    tmp_path: pathlib.Path,
) -> None:
    size_bytes = 1 << 37
    staged.write_bytes(b"")
    with staged.open("r+b") as file:
        file.truncate(size_bytes)
    wrapper, image_id = Wrapper(), ids.parse_image_id(records.IMAGE_ID)
    large = geometry.MAX_CHUNK_BYTES
    run_task(import_plugin.HashStaged("hash", image_id, wrapper, conf, large), staged)
    assert wrapper.properties["acstor_state"] == "hashed"
    [name] = waiting_maps(tmp_path)
    found = chunk_map.ChunkMap.parse((tmp_path / "state/maps" / name).read_bytes(), name)
    assert found.geometry.size_bytes == size_bytes


@pytest.mark.parametrize("disk_format", ["raw", "qcow2"])
def test_empty_disk_is_refused(
    conf: cfg.ConfigOpts, staged: pathlib.Path, tmp_path: pathlib.Path, disk_format: str
) -> None:
    empty = qcow2_files.File(size=0, l1_size=0, l1_offset=0).pack()
    staged.write_bytes(empty if disk_format == "qcow2" else b"")
    wrapper = Wrapper(disk_format=disk_format)
    run(wrapper, staged)
    assert wrapper.properties["acstor_state"] == "refused"
    assert waiting_maps(tmp_path) == []


@pytest.mark.expect_log("not prepared: image")
def test_image_over_its_budget_fails_for_good(
    conf: cfg.ConfigOpts, staged: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    staged.write_bytes(qcow2_bombs.aliased(1 << 40, stored_bytes=4096))
    conf.set_override("max_expansion_ratio", 2, "acstor_glance")
    wrapper = Wrapper(disk_format="qcow2")
    run(wrapper, staged)
    assert wrapper.properties["acstor_state"] == "failed"
    assert "raise [acstor_glance] max_expansion_ratio (2)" in wrapper.properties["acstor_message"]
    assert wrapper.properties["acstor_retry"] == "1 never"
    assert waiting_maps(tmp_path) == []


@pytest.mark.expect_log("changed while it was read")
def test_staged_file_that_changes_is_left_to_the_listener(
    conf: cfg.ConfigOpts,
    staged: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashed = prehash.chunk_hashing.append_cids

    def changing(*arguments: Any) -> None:
        hashed(*arguments)
        with staged.open("ab") as file:
            file.write(b"more")

    monkeypatch.setattr(prehash.chunk_hashing, "append_cids", changing)
    wrapper = Wrapper()
    run(wrapper, staged)
    assert wrapper.properties["acstor_state"] == "failed"
    assert waiting_maps(tmp_path) == []


@pytest.mark.expect_log("left to the listener")
def test_missing_staged_file_does_not_stop_the_import(
    conf: cfg.ConfigOpts, staged: pathlib.Path
) -> None:
    staged.unlink()
    wrapper = Wrapper()
    run(wrapper, staged)
    assert wrapper.properties["acstor_state"] == "failed"


@pytest.mark.expect_log("left to the listener")
def test_unusable_state_folder_does_not_stop_the_import(
    conf: cfg.ConfigOpts, staged: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "state").touch()
    run(Wrapper(), staged)


@pytest.mark.expect_log("left to the listener")
def test_missing_image_does_not_stop_the_import(conf: cfg.ConfigOpts, staged: pathlib.Path) -> None:
    wrapper = Wrapper()
    wrapper.is_broken = True
    run(wrapper, staged)


def test_protected_properties_do_not_stop_the_hashing(
    conf: cfg.ConfigOpts, staged: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    class Protected(Wrapper):
        def set_image_extra_properties(self, properties: dict[str, str]) -> None:
            raise PermissionError("Attribute 'acstor_state' is reserved.")

    run(Protected(), staged)
    assert len(waiting_maps(tmp_path)) == 1


def test_failed_import_leaves_no_map(
    conf: cfg.ConfigOpts, staged: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    class Full(import_plugin.task.Task):
        def execute(self) -> None:
            raise OSError("no space in the store")

    flow = linear_flow.Flow("import").add(
        import_plugin.get_flow(
            image_id=records.IMAGE_ID, task_id="t", task_type="i", action_wrapper=Wrapper()
        ),
        Full("store"),
    )
    with pytest.raises(OSError, match="no space in the store"):
        taskflow.engines.run(flow, store={"file_path": str(staged)})
    assert waiting_maps(tmp_path) == []


def test_failed_imports_hold_a_bounded_number_of_threads(
    conf: cfg.ConfigOpts, staged: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, most = threading.Event(), import_plugin.MAX_PUBLISHING
    monkeypatch.undo()
    monkeypatch.setattr(import_plugin.PublishThread, "run", lambda thread: ended.wait(30))
    wrapper = Wrapper()
    for number in range(most + 4):
        image_id = ids.parse_image_id(records.IMAGE_ID[:-2] + f"{number:02}")
        import_plugin.HashStaged("hash", image_id, wrapper, conf).execute(str(staged))
    threads = threading.enumerate()
    ended.set()
    assert sum(isinstance(one, import_plugin.PublishThread) for one in threads) == most
    assert wrapper.properties["acstor_state"] == "hashed"


@pytest.mark.expect_log("left to the listener: .*auth_type: is not set")
def test_private_image_without_a_known_scope_is_left_to_the_listener(
    conf: cfg.ConfigOpts, staged: pathlib.Path
) -> None:
    conf.clear_override("dedup_scope", "acstor_glance")
    wrapper = Wrapper()
    run(wrapper, staged)
    assert wrapper.properties["acstor_state"] == "failed"
    assert not waiting_maps(staged.parents[1])
