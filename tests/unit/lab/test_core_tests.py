# SPDX-License-Identifier: Apache-2.0
import pathlib

import pytest

from tests.lab import core_tests


def test_mutated_modules_have_the_test_files_of_their_name():
    tests = core_tests._test_files()
    assert tests["hedge"] == "tests/unit/agent/core/test_hedge.py"
    assert tests["remap"] == "tests/unit/decision/core/test_remap.py"
    assert "slabs" not in tests  # others test it


def test_copy_for_mutants_has_the_code_and_only_the_tests_of_cores():
    needed = core_tests._is_needed
    assert needed("acstor_agent/core/budget.py")
    assert needed("tests/unit/agent/core/test_hedge.py")
    assert needed("tests/unit/conftest.py")
    assert not needed("tests/unit/agent/test_fuse.py")
    assert not needed("tests/functional/test_disk.py")


def test_results_of_mutants_are_those_of_all_modules(tmp_path: pathlib.Path):
    folder = tmp_path / "mutants" / "acstor_agent"
    folder.mkdir(parents=True)
    (folder / "one.py.meta").write_text('{"exit_code_by_key": {"one__1": 1, "one__2": null}}')
    (folder / "two.py.meta").write_text('{"exit_code_by_key": {"two__1": 0}}')
    assert core_tests._results(tmp_path) == {"one__1": 1, "one__2": None, "two__1": 0}


def test_measurement_needs_a_part(capsys):
    with pytest.raises(SystemExit):
        core_tests.main([])
    assert "coverage" in capsys.readouterr().err
