# SPDX-License-Identifier: Apache-2.0
"""The listener's build modes, by its option and by the presence of QEMU."""

import shutil

import pytest
from oslo_config import cfg

from acstor_common.image import artefacts
from acstor_glance import metrics
from acstor_glance import sandbox
from acstor_glance.boot import boot_guest
from acstor_glance.boot import build_modes
from tests.fakes import glance_options

needs_qemu = pytest.mark.skipif(
    not all(shutil.which(name) for name in (boot_guest.QEMU, boot_guest.QEMU_IMG)),
    reason="QEMU is not installed",
)


@pytest.fixture
def conf() -> cfg.ConfigOpts:
    return glance_options.conf(builder_sandbox=sandbox.Sandbox.NONE.value)


def ways(conf: cfg.ConfigOpts, option: str) -> tuple[bool, bool]:
    conf.set_override("boot_images", option, "acstor_glance")
    return tuple(build_modes.choose_modes(conf))


@needs_qemu
def test_installed_qemu_enables_builds_by_default(conf: cfg.ConfigOpts) -> None:
    assert conf.acstor_glance.boot_images == "auto"
    assert build_modes.choose_modes(conf) == build_modes.BuildModes(builds=True, records=True)


@pytest.mark.parametrize("missing", ["QEMU", "QEMU_IMG"])
def test_missing_qemu_leaves_only_recorded_boots(
    conf: cfg.ConfigOpts, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot_guest, missing, "qemu-that-is-missing")
    assert ways(conf, "auto") == (False, True)


@needs_qemu
def test_option_selects_the_build_modes(conf: cfg.ConfigOpts) -> None:
    assert ways(conf, "none") == (False, False)
    assert ways(conf, "recorded") == (False, True)
    assert ways(conf, "built") == (True, False)
    assert ways(conf, "both") == (True, True)


def test_metrics_show_the_build_modes_and_states_of_images() -> None:
    counters = metrics.ListenerMetrics()
    counters.show_build_modes(build_modes.BuildModes(builds=False, records=True))
    counters.show_boot_states({artefacts.BootState.WAITING: 3})

    def shown(name: str, **labels: str) -> float | None:
        return counters.registry.get_sample_value(f"acstor_glance_{name}", labels)

    assert [shown("boot_image_method_enabled", method=way) for way in ("built", "recorded")] == [
        0,
        1,
    ]
    assert [shown("boot_images", state=s) for s in ("waiting", "ready", "unbootable")] == [3, 0, 0]
