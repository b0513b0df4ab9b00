# SPDX-License-Identifier: Apache-2.0
"""tox runs the tests of tools/test.sh, with the libraries of tools/install.sh."""

import configparser
import pathlib
import re
import shlex

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOX = configparser.ConfigParser(interpolation=None)
TOX.read(ROOT / "tox.ini")


def paths(part: str) -> set[str]:
    """Return the arguments of the scripts in tools/ to pytest for a part."""
    text = "".join((ROOT / "tools" / name).read_text() for name in ("lib.sh", "test.sh"))
    [found] = re.findall(rf"^{part}=\(([^)]+)\)", text, re.MULTILINE)
    return set(found.split())


def words_of(part: str) -> list[str]:
    return shlex.split(TOX[f"testenv:{part}"]["commands"].replace("\\\n", " "))


@pytest.mark.parametrize("part", ["unit", "functional"])
def test_tox_runs_the_tests_of_the_script(part: str) -> None:
    words = words_of(part)
    assert words[:4] == ["python", "-m", "pytest", "-m"] and words[-1] == "{posargs}"
    folders = {word for word in words[5:-1] if not word.startswith("--ignore=")}
    assert folders == paths(part.upper())
    assert all((ROOT / word).is_dir() for word in folders)
    assert "not packages" in words[4]


def test_no_test_runs_in_two_parts() -> None:
    folders = map(pathlib.PurePath, paths("FUNCTIONAL"))
    both = {
        f"--ignore={unit}"
        for each in folders
        for unit in paths("UNIT")
        if each in pathlib.PurePath(unit).parents
    }
    assert both and both <= set(words_of("functional"))
    assert all(word in (ROOT / "tools/test.sh").read_text() for word in both)


def test_tox_installs_the_extras_of_the_script() -> None:
    [installed] = re.findall(r"\$\{ROOT\}\[([a-z,]+)\]", (ROOT / "tools/install.sh").read_text())
    assert TOX["testenv"]["extras"].split(",") == installed.split(",")


def test_genconfig_uses_every_generator() -> None:
    made = re.findall(r"--config-file (\S+)", TOX["testenv:genconfig"]["commands"])
    there = (ROOT / "etc/acstor/config-generator").iterdir()
    assert sorted(made) == sorted(str(path.relative_to(ROOT)) for path in there)
