# SPDX-License-Identifier: Apache-2.0
"""tox runs what tools/test.sh runs, with what tools/install.sh installs."""

import configparser
import pathlib
import re
import shlex

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOX = configparser.ConfigParser(interpolation=None)
TOX.read(ROOT / "tox.ini")


def paths(part: str) -> set[str]:
    """Return what the scripts of tools/ give pytest for a part."""
    text = "".join((ROOT / "tools" / name).read_text() for name in ("lib.sh", "test.sh"))
    [found] = re.findall(rf"^{part}=\(([^)]+)\)", text, re.MULTILINE)
    return set(found.split())


@pytest.mark.parametrize("part", ["unit", "functional"])
def test_tests_are_the_same(part: str) -> None:
    words = shlex.split(TOX[f"testenv:{part}"]["commands"].replace("\\\n", " "))
    assert words[:4] == ["python", "-m", "pytest", "-m"] and words[-1] == "{posargs}"
    assert set(words[5:-1]) == paths(part.upper())
    assert all((ROOT / word).is_dir() for word in words[5:-1])
    assert "not packages" in words[4]


def test_libraries_are_the_same() -> None:
    [installed] = re.findall(r"\$\{ROOT\}\[([a-z,]+)\]", (ROOT / "tools/install.sh").read_text())
    assert TOX["testenv"]["extras"].split(",") == installed.split(",")


def test_samples_of_all_generators_are_made() -> None:
    made = re.findall(r"--config-file (\S+)", TOX["testenv:genconfig"]["commands"])
    there = (ROOT / "etc/acstor/config-generator").iterdir()
    assert sorted(made) == sorted(str(path.relative_to(ROOT)) for path in there)
