# SPDX-License-Identifier: Apache-2.0
"""The examples in docstrings print the documented output."""

import doctest
import importlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULES = sorted(
    str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
    for folder in (*ROOT.glob("acstor_*"), ROOT / "tests")
    for path in folder.rglob("*.py")
    if re.search(r"^ +>>> ", path.read_text(), re.MULTILINE)
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted and not result.failed
