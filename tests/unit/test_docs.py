# SPDX-License-Identifier: Apache-2.0
"""The guides match the code, and each other."""

import itertools
import pathlib
import re
import tomllib

import pytest

from acstor_nova import nova_hooks

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOC = ROOT / "doc/source"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OF_NOVA = {"oslo.config", "requests"}
"""Nova's own dependencies."""
PAGES = [*sorted((DOC / "install").glob("*.rst")), *sorted((DOC / "admin").glob("*.rst"))]
SECTION = re.compile(r"^ +\[(\w+)\]$", re.MULTILINE)
NOVA = DOC / "admin/nova.rst"
OF_ACSTOR = ("acstor_glance", "source_glance", "keystone_authtoken")
"""Sections whose user belongs to the project of chunk maps; others use none of its artefacts."""


def sections(text: str) -> list[tuple[str, dict[str, str]]]:
    """Return a page's configuration examples by section, with their options."""
    found = []
    starts = list(SECTION.finditer(text))
    for start, after in itertools.pairwise([*starts, None]):
        body = text[start.end() : after.start() if after else len(text)]
        shown = []
        for line in body.splitlines():
            if line and not line.startswith(" "):
                break  # the block has ended
            shown.append(line)
        options = re.findall(r"^ +(\w+) = (.*)$", "\n".join(shown), re.MULTILINE)
        found.append((start[1], dict(options)))
    return found


def test_all_guides_use_the_project_that_the_glance_guide_creates() -> None:
    made = re.findall(r"openstack project create (\S+)", (DOC / "admin/glance.rst").read_text())
    shown = [
        (page.name, group, options["project_name"])
        for page in PAGES
        for group, options in sections(page.read_text())
        if group in OF_ACSTOR and "project_name" in options
    ]
    assert {group for _, group, _ in shown} == set(OF_ACSTOR)
    assert {project for _, _, project in shown} == set(made) == {"acstor"}, shown


@pytest.mark.parametrize("extra", ["glance", "decision"])
def test_extra_has_the_driver_of_the_documented_coordination_service(extra: str) -> None:
    assert "mysql://" in (DOC / f"admin/{extra}.rst").read_text()
    assert any(need.startswith("PyMySQL") for need in EXTRAS[extra])


def test_guides_install_all_dependencies_that_nova_lacks() -> None:
    """They install it without dependencies, so that Nova's own versions stay."""
    needs = [*PROJECT["dependencies"], *EXTRAS["nova"]]
    names = {re.split("[^A-Za-z0-9._-]", need)[0] for need in needs}
    for page in ("install/index.rst", "admin/upgrades.rst"):
        [line] = re.findall(r"--no-deps \\\n +\. (.*)", (DOC / page).read_text())
        assert names - OF_NOVA <= set(line.split()), page


def test_introduction_of_the_nova_page_names_the_image_backend() -> None:
    """Operators search by the word of Nova's code, and by that of its options."""
    [start] = re.findall(r"^=+\nNova\n=+\n\n(.*?)\n\n", NOVA.read_text(), re.DOTALL)
    assert all(word in start for word in ("image_backend", "image backend", "images_type = acstor"))


def test_guides_contain_no_option_that_stock_nova_refuses() -> None:
    for page in PAGES:
        assert not re.search(r"^ +images_type = acstor", page.read_text(), re.MULTILINE), page
    assert not re.search(r"^images_type", (ROOT / "etc/nova/acstor.conf").read_text(), re.M)


def test_guides_name_the_supported_versions_of_nova() -> None:
    text = f"Nova {min(nova_hooks.HOOKS)} to {max(nova_hooks.HOOKS)} "
    assert text in (DOC / "admin/nova.rst").read_text()
    assert text in (DOC / "install/index.rst").read_text()
