# SPDX-License-Identifier: Apache-2.0
"""The Debian packages' metadata; tests/functional/test_packages.py builds them."""

import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
import tomllib

import pytest
from oslo_config import cfg
from packaging import requirements
from packaging import version

from acstor_agent import conf as agent_conf
from acstor_checkpoint import conf as checkpoint_conf
from acstor_common.service import conf as common_conf
from acstor_decision import conf as decision_conf
from acstor_glance import conf as glance_conf

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEBIAN = ROOT / "packaging/debian"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXPERIMENTS = "acstor_policies"
"""A separate distribution outside of the Debian packages."""
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
    """Return Debian's names of libraries, with their bounds."""
    found = {}
    for line in dependencies:
        one = requirements.Requirement(line)
        name = NAMES.get(one.name, f"python3-{one.name.lower()}")
        found[name] = str(one.specifier).removeprefix(">=")
    return found


@pytest.mark.parametrize("package", EXTRAS)
def test_package_depends_on_the_libraries_of_its_extra(package):
    extras = [PROJECT["optional-dependencies"][extra] for extra in EXTRAS[package]]
    needed = wanted([line for extra in extras for line in extra])
    assert depends(package).items() >= needed.items()


def test_library_depends_on_the_common_dependencies():
    assert depends("python3-acstor") == wanted(PROJECT["dependencies"])


def test_build_dependencies_include_those_of_all_commands():
    built = re.findall(r"^ ([\w.-]+) <!nodoc", (DEBIAN / "control").read_text(), re.MULTILINE)
    of_commands = set(EXTRAS) - {"python3-acstor-osc"}
    assert {name for package in of_commands for name in depends(package)} <= {*built}


def test_every_python_package_is_in_a_debian_package():
    packages = set(
        re.findall(
            r'^    "(acstor_\w+)": ', (DEBIAN / "split_packages.py").read_text(), re.MULTILINE
        )
    )
    every = {path.parent.name for path in ROOT.glob("acstor_*/__init__.py")}
    assert packages == every - {EXPERIMENTS}
    excluded = PYPROJECT["tool"]["setuptools"]["packages"]["find"]["exclude"]
    assert excluded == [f"{EXPERIMENTS}*"]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_default_configuration_has_only_known_options(name):
    conf, options = cfg.ConfigOpts(), CONFIGURATIONS[name]
    file = ROOT / f"etc/acstor/acstor-{name}.conf"
    common_conf.read(
        conf, ["--config-file", str(file)], "test", options.register_opts, options.list_opts()
    )
    assert common_conf.unknown(conf, options.list_opts()) == []


QUICKSTART = (ROOT / "doc/source/install/quickstart.rst").read_text()
SHOWN = re.findall(
    r"^    # /etc/acstor/acstor-(\w+)\.conf\n((?:    .*\n|\n)+)", QUICKSTART, re.MULTILINE
)


def test_quickstart_shows_the_files_of_its_services():
    assert sorted(name for name, _ in SHOWN) == ["agent", "decision", "glance"]


@pytest.mark.parametrize(("name", "text"), SHOWN, ids=[name for name, _ in SHOWN])
def test_quickstart_shows_known_options_and_all_required_ones(name, text, tmp_path):
    file, options = tmp_path / "shown.conf", CONFIGURATIONS[name]
    file.write_text(textwrap.dedent(text))
    conf = cfg.ConfigOpts()
    common_conf.read(
        conf, ["--config-file", str(file)], "test", options.register_opts, options.list_opts()
    )
    assert common_conf.unknown(conf, options.list_opts()) == []
    default = (ROOT / f"etc/acstor/acstor-{name}.conf").read_text()
    needed = set(re.findall(r"^# (auth_url|password|peer_listen|transport_url) =", default, re.M))
    assert needed and needed <= set(re.findall(r"^(\w+) =", file.read_text(), re.M))


class Clone:
    """A clone with only the scripts that make packages."""

    def __init__(self, folder):
        if shutil.which("git") is None:
            pytest.skip("there is no git here")
        self.folder = folder / "clone"
        (self.folder / "tools").mkdir(parents=True)
        (self.folder / "packaging/debian").mkdir(parents=True)
        for name in ("package.sh", "lib.sh"):
            shutil.copy(ROOT / "tools" / name, self.folder / "tools")
        shutil.copy(DEBIAN / "rules", self.folder / "packaging/debian")
        self.git("init", "--quiet")
        self.git("add", ".")
        self.git("commit", "--quiet", "--message=first")

    def git(self, *words):
        who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *words], cwd=self.folder, check=True)

    def commit(self, count):
        for number in range(count):
            self.git("commit", "--quiet", "--allow-empty", f"--message={number}")

    def package(self, *words, path=""):
        """Run tools/package.sh; return its output."""
        environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}
        script = self.folder / "tools/package.sh"
        argv = ["bash", script, *words]
        done = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def pip_version(self):
        """Return the version that pip would report, which comes from pbr."""
        return version_of(self.folder)


def version_of(folder):
    say = "from pbr import packaging; print(packaging.get_version('acstor'))"
    argv = [sys.executable, "-c", say]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_pip_and_dpkg_versions_correspond_and_sort_alike(tmp_path):
    clone = Clone(tmp_path)
    seen = []
    for tag, commits in ((None, 1), ("1.2.0.0rc1", 0), (None, 2), ("1.2.0", 0), (None, 3)):
        clone.commit(commits)
        if tag:
            clone.git("tag", tag)
        seen.append((clone.pip_version(), clone.package("--version")))
    assert seen == [
        ("0.0.1.dev1", "0.0.1~dev1"),
        ("1.2.0.0rc1", "1.2.0~rc1"),
        ("1.2.0.0rc2.dev2", "1.2.0~rc2.dev2"),
        ("1.2.0", "1.2.0"),
        ("1.2.1.dev3", "1.2.1~dev3"),
    ]
    for (of_pip, of_debian), (next_of_pip, next_of_debian) in itertools.pairwise(seen):
        assert version.Version(of_pip) < version.Version(next_of_pip)
        if shutil.which("dpkg"):
            sorts = ["dpkg", "--compare-versions", f"{of_debian}-1", "lt", f"{next_of_debian}-1"]
            subprocess.run(sorts, check=True)


def test_source_package_has_the_version_of_pip(tmp_path):
    clone = Clone(tmp_path)
    tools, folder = tmp_path / "tools", tmp_path / "made"
    tools.mkdir()
    for name in ("dpkg-buildpackage", "dpkg-scanpackages"):  # other tests cover their output
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    folder.mkdir()
    clone.commit(1)
    clone.package(str(folder), path=tools)
    source = folder / "acstor-0.0.1~dev1"
    assert (source / "debian/changelog").read_text().startswith("acstor (0.0.1~dev1-1) ")
    assert version_of(source) == clone.pip_version() == "0.0.1.dev1"
    with tarfile.open(folder / "acstor_0.0.1~dev1.orig.tar.gz") as archive:
        assert f"{source.name}/PKG-INFO" in archive.getnames()
    rule = re.search(r"^VERSION := \$\(shell (.+)\)$", (DEBIAN / "rules").read_text(), re.MULTILINE)
    said = subprocess.run(["sh", "-c", rule[1]], cwd=source, capture_output=True, text=True)
    assert said.stdout.strip() == "0.0.1.dev1"


def test_quickstart_names_the_number_of_built_packages():
    built = (DEBIAN / "control").read_text().count("\nPackage: ")
    guide = (ROOT / "doc/source/install/quickstart.rst").read_text()
    assert f"``Wrote {built} entries to output Packages file``" in guide
