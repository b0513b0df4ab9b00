# SPDX-License-Identifier: Apache-2.0
"""The Debian packages as they are described; tests/functional/test_packages.py builds them."""

import pathlib
import re
import shutil
import subprocess
import tomllib

import pytest
from oslo_config import cfg
from packaging import requirements

from acstor_agent import conf as agent_conf
from acstor_checkpoint import conf as checkpoint_conf
from acstor_common import conf as common_conf
from acstor_decision import conf as decision_conf
from acstor_glance import conf as glance_conf

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEBIAN = ROOT / "packaging/debian"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    "acstor-agent": ["agent"],
    "acstor-checkpoint": ["checkpoint"],
    "acstor-decision": ["decision"],
    "acstor-glance": ["gateway", "glance"],
    "acstor-nova": ["nova"],
    "acstor-simulator": ["simulator"],
    "python3-acstor-osc": ["osc"],
}
NAMES = {
    "libvirt-python": "python3-libvirt",
    "python-glanceclient": "python3-glanceclient",
    "glance_store": "python3-glance-store",
}
CONFIGURATIONS = {
    "agent": agent_conf,
    "checkpoint": checkpoint_conf,
    "decision": decision_conf,
    "glance": glance_conf,
}


def depends(package):
    """Return the bounds of a package's libraries, without epochs."""
    if package == "acstor-agent":
        text = (DEBIAN / "acstor-agent.depends").read_text()
    else:
        stanza = re.search(
            rf"^Package: {package}\n(?:.+\n)+", (DEBIAN / "control").read_text(), re.MULTILINE
        )
        text = re.search(r"^Depends: ((?:.+\n)(?: .+\n)*)", stanza[0], re.MULTILINE)[1]
    found = re.findall(r"(python3-[\w.-]+)(?: \(>= (?:\d+:)?([\d.]+)\))?", text)
    return {name: bound for name, bound in found if not name.startswith("python3-acstor")}


def wanted(dependencies):
    """Return what Debian calls libraries, with their bounds."""
    found = {}
    for line in dependencies:
        one = requirements.Requirement(line)
        name = NAMES.get(one.name, f"python3-{one.name.lower()}")
        found[name] = str(one.specifier).removeprefix(">=")
    return found


@pytest.mark.parametrize("package", EXTRAS)
def test_package_depends_on_what_its_extra_needs(package):
    extras = [PROJECT["optional-dependencies"][extra] for extra in EXTRAS[package]]
    needed = wanted([line for extra in extras for line in extra])
    assert depends(package).items() >= needed.items()


def test_library_depends_on_what_all_need():
    assert depends("python3-acstor") == wanted(PROJECT["dependencies"])


def test_every_room_is_in_a_package():
    rooms = set(
        re.findall(r'^    "(acstor_\w+)": ', (DEBIAN / "rooms.py").read_text(), re.MULTILINE)
    )
    assert rooms == {path.parent.name for path in ROOT.glob("acstor_*/__init__.py")}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_default_configuration_has_no_option_that_is_none(name):
    conf, options = cfg.ConfigOpts(), CONFIGURATIONS[name]
    file = ROOT / f"etc/acstor/acstor-{name}.conf"
    common_conf.read(
        conf, ["--config-file", str(file)], "test", options.register_opts, options.list_opts()
    )
    assert common_conf.strays(conf, options.list_opts()) == []


@pytest.mark.parametrize(
    ("tag", "commits", "version"),
    [
        ("1.2.0", 0, "1.2.0"),
        ("1.2.0", 2, r"1\.2\.0\+git2\.[0-9a-f]+"),
        ("1.2.0.0rc1", 0, "1.2.0~rc1"),
        (None, 0, r"0\.0~git20260102030405\.[0-9a-f]+"),
    ],
)
def test_version_comes_from_the_last_tag(tmp_path, tag, commits, version):
    if shutil.which("git") is None:
        pytest.skip("there is no git here")
    (tmp_path / "tools").mkdir()
    for name in ("package.sh", "lib.sh"):
        shutil.copy(ROOT / "tools" / name, tmp_path / "tools")

    def git(*words):
        who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
        times = {"GIT_COMMITTER_DATE": "2026-01-02T05:04:05+0200", "HOME": str(tmp_path)}
        subprocess.run(["git", *who, *words], cwd=tmp_path, env=times, check=True)

    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "--message=first")
    if tag:
        git("tag", tag)
    for number in range(commits):
        git("commit", "--quiet", "--allow-empty", f"--message={number}")
    script = tmp_path / "tools/package.sh"
    said = subprocess.run(["bash", script, "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(version, said.stdout.strip())
