# SPDX-License-Identifier: Apache-2.0
"""Options have help texts, the sample names them all, and invalid values are refused."""

import pathlib
import re

import pytest
from oslo_config import cfg
from oslo_config import generator

from acstor_common import errors
from acstor_glance import conf as glance_conf
from acstor_glance.client import glance_client
from acstor_glance.cmd import manage
from tests.fakes import glance_options

ROOT = pathlib.Path(__file__).resolve().parents[3]
SAMPLE = ROOT / "etc/acstor/config-generator/acstor-glance.conf"


def loaded(tmp_path: pathlib.Path, *lines: str) -> cfg.ConfigOpts:
    path = tmp_path / "acstor-glance.conf"
    path.write_text("\n".join(("[acstor_glance]", *lines)))
    return glance_options.conf(path)


def test_every_option_has_a_help_text() -> None:
    assert [opt.name for opt in glance_conf.OPTS if len(opt.help or "") < 20] == []


def test_sample_names_every_option(tmp_path: pathlib.Path) -> None:
    sample = tmp_path / "sample.conf"
    generator.main(["--config-file", str(SAMPLE), "--output-file", str(sample)])
    section = sample.read_text().partition("\n[acstor_glance]\n")[2].partition("\n[")[0]
    names = [opt.dest for _group, opts in glance_conf.list_opts() for opt in opts]
    assert {"auth_url", "username", "password", "project_name", "region_name"} <= set(names)
    missing = [name for name in names if not re.search(rf"^#?{name} =", section, re.MULTILINE)]
    assert missing == []


@pytest.mark.parametrize("line", ["workers = 0", "workers = 65", "dedup_scope = all"])
def test_values_out_of_range_are_refused(tmp_path: pathlib.Path, line: str) -> None:
    conf = loaded(tmp_path, line)
    with pytest.raises(cfg.ConfigFileValueError):
        _ = conf.acstor_glance[line.partition(" ")[0]]


def test_missing_service_user_is_reported(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.Unusable, match="auth_type: is not set"):
        glance_client.connect(loaded(tmp_path))
    with pytest.raises(errors.Unusable, match=r"\[acstor_glance\]"):
        glance_client.connect(loaded(tmp_path, "auth_type = no-such-plugin"))


def test_commands_validate_all_options_at_their_start(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "acstor-glance.conf"
    path.write_text("[acstor_glance]\nworkers = 0\n")
    with pytest.raises(cfg.Error, match=r"workers: Should be greater than or equal to 1"):
        manage.load_conf(str(path))
    with pytest.raises(cfg.Error, match=r"none\.conf"):
        manage.load_conf(str(tmp_path / "none.conf"))
