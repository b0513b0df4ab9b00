# SPDX-License-Identifier: Apache-2.0
"""What options become: each one of the disk's reaches Pregather, the paper's values by default."""

import pathlib
import types

import pytest
from oslo_config import cfg

from acstor_agent import conf
from acstor_agent import settings
from acstor_agent.core.disk_scheduling import pregather
from acstor_common import errors

SECTOR = 512


def options(folder: pathlib.Path, **chosen: float) -> settings.Options:
    lines = (f"{name} = {value}\n" for name, value in chosen.items())
    file = folder / "agent.conf"
    file.write_text("[acstor_agent]\n" + "".join(lines))
    made = cfg.ConfigOpts()
    conf.register_opts(made)
    made([], default_config_files=[str(file)])
    return made.acstor_agent


def test_defaults_are_those_of_the_paper(tmp_path: pathlib.Path) -> None:
    limits = settings.scheduling_limits(options(tmp_path))
    assert limits == pregather.Limits()
    assert (limits.zone_bytes, limits.decay, limits.window_s) == (2000 * SECTOR, 2.0, 0.020)
    assert limits.slice_s == 0.2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("zone_bytes", 1 << 20),
        ("decay", 3.0),
        ("window_s", 0.1),
        ("region_bytes", 1 << 30),
        ("slice_s", 0.5),
        ("tick_s", 0.0),
    ],
)
def test_option_of_the_disk_reaches_pregather(
    tmp_path: pathlib.Path, name: str, value: float
) -> None:
    limits = settings.scheduling_limits(options(tmp_path, **{f"disk_{name}": value}))
    assert limits == pregather.Limits(**{name: value})


@pytest.mark.parametrize(
    ("address", "fault"),
    [
        ("0.0.0.0:7201", "unspecified"),
        ("[::]:7201", "unspecified"),
        ("224.0.0.1:7201", "multicast"),
        ("169.254.169.254:7201", "link-local"),
        ("[fe80::1]:7201", "link-local"),
    ],
)
def test_an_address_that_nobody_could_use_is_not_told_to_others(address, fault):
    own = types.SimpleNamespace(peer_address=address, peer_listen="10.0.0.1:7201")
    with pytest.raises(errors.Unusable, match=rf"peer_address: .*it is {fault}"):
        settings.reachable_at(own)
    assert settings.reachable_at(types.SimpleNamespace(**vars(own) | {"peer_address": ""}))
