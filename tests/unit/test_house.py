# SPDX-License-Identifier: Apache-2.0
"""The project's own rules: licences, docstrings, options, entry points, the checked log."""

import importlib
import importlib.metadata
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
from oslo_config import cfg
from oslo_config import generator
from oslo_log import log
from packaging import requirements
from packaging import utils

from acstor_agent import conf as agent_conf
from acstor_checkpoint import conf as checkpoint_conf
from acstor_common.service import conf as common_conf
from acstor_decision import conf as decision_conf
from acstor_decision.api import conf as api_conf
from acstor_glance import conf as glance_conf
from acstor_glance.gateway import conf as gateway_conf
from acstor_nova import conf as nova_conf

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MODULES = sorted(path for room in ROOT.glob("acstor_*/") for path in room.rglob("*.py"))
SAMPLE = ROOT / "etc/acstor/config-generator/acstor-agent.conf"
SPDX = "# SPDX-License-Identifier: Apache-2.0"
FOREIGN = re.compile(
    r"/(?:home|Users|work|workspace)/\w"  # a path of a developer's machine
    r"|pypi\.org|pythonhosted\.org|npmjs\.org|docker\.io|ghcr\.io|quay\.io"  # a registry
)


def tracked_files() -> list[pathlib.Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listing.returncode:
        pytest.skip("this is no git checkout")
    names = listing.stdout.decode().split("\0")
    return [ROOT / name for name in names if name and os.path.lexists(ROOT / name)]


def test_no_ignored_file_is_tracked():
    """A tracked link to a cache would replace every checkout's own cache."""
    argv = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"]
    listing = subprocess.run(argv, cwd=ROOT, capture_output=True, check=False)
    if listing.returncode:
        pytest.skip("this is no git checkout")
    assert listing.stdout.decode().split() == []


def entry_points() -> dict[str, str]:
    groups = {"console_scripts": PYPROJECT["project"]["scripts"]}
    groups |= PYPROJECT["project"]["entry-points"]
    return {f"{group}:{name}": at for group, names in groups.items() for name, at in names.items()}


def agent_options() -> list[tuple[str, cfg.Opt]]:
    return [(group.name, opt) for group, opts in agent_conf.list_opts() for opt in opts]


def decision_options() -> list[tuple[str, cfg.Opt]]:
    return [(group.name, opt) for group, opts in decision_conf.list_opts() for opt in opts]


def checkpoint_options() -> list[tuple[str, cfg.Opt]]:
    return [(group.name, opt) for group, opts in checkpoint_conf.list_opts() for opt in opts]


def nova_options() -> list[tuple[str, cfg.Opt]]:
    return [(group.name, opt) for group, opts in nova_conf.list_opts() for opt in opts]


def test_every_script_and_module_starts_with_its_licence() -> None:
    sources = [path for path in tracked_files() if path.suffix in {".py", ".sh"}]
    assert len(sources) > 20
    bare = [path for path in sources if SPDX not in path.read_text().splitlines()[:2]]
    assert not bare


def test_no_tracked_link_points_outside_the_tree() -> None:
    links = [path for path in tracked_files() if path.is_symlink()]
    assert [link for link in links if not link.resolve().is_relative_to(ROOT)] == []


def test_clean_up_removes_results_and_keeps_tracked_files(tmp_path: pathlib.Path) -> None:
    copies = [tmp_path / path.relative_to(ROOT) for path in tracked_files()]
    for copy in copies:
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / copy.relative_to(tmp_path), copy)
    (tmp_path / "results").mkdir()
    subprocess.run(["bash", tmp_path / "tools/clean.sh"], check=True, capture_output=True)
    assert not (tmp_path / "results").exists()
    assert [copy for copy in copies if not copy.is_file()] == []


def test_no_tracked_file_names_a_machine_or_a_registry() -> None:
    found = []
    for path in tracked_files():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue  # a binary file
        found += [f"{path.relative_to(ROOT)}: {line}" for line in lines if FOREIGN.search(line)]
    assert not found


def test_every_dependency_has_a_tested_version() -> None:
    project = PYPROJECT["project"]
    wanted = [
        *project["dependencies"],
        *itertools.chain(*project["optional-dependencies"].values()),
    ]
    pinned = {
        utils.canonicalize_name(line.partition("==")[0])
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    names = {utils.canonicalize_name(requirements.Requirement(text).name) for text in wanted}
    assert names - pinned == set()


@pytest.mark.parametrize("name", entry_points())
def test_entry_point_can_be_loaded(name: str) -> None:
    module, _, attribute = entry_points()[name].partition(":")
    loaded = importlib.import_module(module)
    assert callable(getattr(loaded, attribute)) if attribute else loaded  # a module


def test_every_option_has_a_help_text() -> None:
    every = [
        *agent_options(),
        *checkpoint_options(),
        *decision_options(),
        *nova_options(),
    ]
    silent = [f"{group}.{opt.name}" for group, opt in every if len(opt.help or "") < 20]
    assert not silent


def test_services_have_no_more_than_81_options_beside_those_of_plug_ins() -> None:
    parts = [common_conf, agent_conf, checkpoint_conf, decision_conf, api_conf, glance_conf]
    assert sum(len(part.OPTS) for part in (*parts, gateway_conf, nova_conf)) <= 81


def test_sample_names_every_option_and_an_agent_can_read_it(tmp_path: pathlib.Path) -> None:
    sample = tmp_path / "sample.conf"
    generator.main(["--config-file", str(SAMPLE), "--output-file", str(sample)])
    text = sample.read_text()
    for group, opt in agent_options():
        section = text.partition(f"\n[{group}]\n")[2].partition("\n[")[0]
        assert re.search(rf"^#?{opt.dest} =", section, re.MULTILINE), f"{group}.{opt.dest}"
    conf = cfg.ConfigOpts()
    log.register_options(conf)
    agent_conf.register_opts(conf)
    conf(["--config-file", str(sample)], default_config_files=[], default_config_dirs=[])
    assert conf.acstor_agent.keep_images == "host"


def test_sample_of_the_decision_service_names_every_option(tmp_path: pathlib.Path) -> None:
    sample = tmp_path / "sample.conf"
    source = SAMPLE.with_name("acstor-decision.conf")
    generator.main(["--config-file", str(source), "--output-file", str(sample)])
    text = sample.read_text()
    for group, opt in decision_options():
        section = text.partition(f"\n[{group}]\n")[2].partition("\n[")[0]
        assert re.search(rf"^#?{opt.dest} =", section, re.MULTILINE), f"{group}.{opt.dest}"
    assert "#transport_url = " in text and "\n[database]\n" in text


LOGGING_TESTS = """
import logging
import pytest

def test_a_warning_nobody_expects_fails():
    logging.getLogger("acstor_x.part").warning("slot %d is bad", 3)

@pytest.mark.expect_log("slot . is bad")
def test_b_expected_warning_passes():
    logging.getLogger("acstor_x.part").warning("slot %d is bad", 3)

@pytest.mark.expect_log("slot . is bad")
def test_c_expected_warning_that_does_not_come_fails():
    logging.getLogger("acstor_x.part").info("slot %d is bad", 3)

@pytest.mark.allow_log("slot . is bad")
def test_d_allowed_warning_need_not_come():
    pass

def test_e_warnings_of_others_are_their_own():
    logging.getLogger("somebody.else").warning("slot %d is bad", 3)

@pytest.mark.expect_log("slot . is bad")
def test_f_skipped_test_promises_nothing():
    pytest.skip("not here")
"""


def test_unexpected_warning_fails_a_test(tmp_path: pathlib.Path) -> None:
    (tmp_path / "acstor_x").mkdir()
    (tmp_path / "acstor_x/__init__.py").touch()
    (tmp_path / "tests").mkdir()
    plugins = 'pytest_plugins = ["tests.lab.fixtures"]'
    conftest = (ROOT / "tests/conftest.py").read_text()
    assert plugins in conftest
    conftest = conftest.replace(plugins, "")  # fixtures of the lab need the whole checkout
    (tmp_path / "tests/conftest.py").write_text(conftest)
    (tmp_path / "tests/test_log.py").write_text(LOGGING_TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    failed = re.findall(r"^ERROR tests/test_log.py::test_(\w)", run.stdout, re.MULTILINE)
    assert failed == ["a", "c"], run.stdout
    assert "unexpected log: WARNING acstor_x.part: slot 3 is bad" in run.stdout
    assert "expected log did not come: slot . is bad" in run.stdout


@pytest.mark.parametrize(
    ("release", "status", "said"),
    [
        ("4.19.0-27-amd64", 1, "is too old"),
        ("5.3.18", 1, "is too old"),
        ("5.4.0-1-generic", 0, "take-over"),
        ("6.1.0-18-amd64", 0, "take-over"),
        ("6.9-rc1", 0, ""),
        ("6.18.44+deb13", 0, ""),
        ("7.0", 0, ""),
    ],
)
def test_scripts_check_the_kernel_version(
    tmp_path: pathlib.Path, release: str, status: int, said: str
) -> None:
    fake = tmp_path / "uname"
    fake.write_text(f"#!/bin/sh\necho {release}\n")
    fake.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["bash", "-euc", f"source {ROOT}/tools/lib.sh; require_kernel"]
    run = subprocess.run(command, env=path, capture_output=True, text=True, check=False)
    assert run.returncode == status
    assert said in run.stderr if said else not run.stderr


def test_patterns_of_external_input_are_defined_in_one_module() -> None:
    own = [path.name for path in MODULES if "Meta(pattern" in path.read_text()]
    assert own == ["text_constraints.py"]


def test_services_on_one_controller_have_distinct_metrics_endpoints() -> None:
    every = [*agent_conf.list_opts(), *decision_conf.list_opts(), *glance_conf.list_opts()]
    places = [opt.default for _, opts in every for opt in opts if opt.dest == "metrics_listen"]
    assert len(places) == 3 == len(set(places))


@pytest.mark.parametrize("page", ["admin/failures", "contributor/testing", "contributor/peer_bugs"])
def test_every_documented_test_exists(page: str) -> None:
    named = re.findall(r"``(test_\w+)``", (ROOT / f"doc/source/{page}.rst").read_text())
    files = (ROOT / "tests").rglob("test_*.py")
    there = {name for file in files for name in re.findall(r"def (test_\w+)\(", file.read_text())}
    assert named
    assert set(named) - there == set()


def test_attacks_page_names_every_security_test_and_only_existing_files() -> None:
    page = (ROOT / "doc/source/contributor/attacks.rst").read_text()
    named = set(re.findall(r"``([\w/]*test_\w+\.py)``", page))
    own = {path.name for path in (ROOT / "tests/security").glob("test_*.py")}
    assert own - named == set()
    assert [name for name in named - own if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("options", ["acstor.decision", "acstor.glance"])
def test_url_of_the_coordination_service_is_a_secret(options: str) -> None:
    [found] = importlib.metadata.entry_points(group="oslo.config.opts", name=options)
    [url] = [o for _, group in found.load()() for o in group if o.name == "coordination_url"]
    assert url.secret
