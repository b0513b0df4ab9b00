# SPDX-License-Identifier: Apache-2.0
"""Packages represent the paper's by size alone, and every repository has the common one."""

import pytest

from evaluation.bench import harness
from evaluation.papers import s3_repositories as repositories
from evaluation.papers import s3_table_1 as table_1

SHOWN = """\
Package: ant
Version: 1.10.13-1
Size: 2161096
Description-en: Java based build tool

Package: git
Installed-Size: 5
Size: 7260000
"""


def test_sizes_are_those_of_the_archives() -> None:
    assert repositories.sizes_in(SHOWN) == {"ant": 2161096, "git": 7260000}


def test_chosen_packages_are_distinct() -> None:
    sizes = {f"p{n}": 12_000_000 + n for n in range(len(repositories.PAPER_MB))}
    found = repositories.chosen(sizes)
    assert sorted(found) == sorted(repositories.PAPER_MB)
    assert sorted(found.values()) == sorted(sizes)


def test_too_few_packages_stop_the_run() -> None:
    with pytest.raises(harness.CannotRun, match="apt finds only ant"):
        repositories.chosen({"ant": 1})


def test_repositories_have_only_the_common_package_in_common() -> None:
    first, second = (set(contents) for contents in repositories.CONTENTS)
    assert first & second == {repositories.COMMON}
    assert first | second == set(repositories.PAPER_MB)


def test_table_1_has_each_package_and_each_share() -> None:
    shares = {str(size): 0.5 for size in repositories.CHUNK_SIZES}
    found = {
        "packages": {name: {"package": "ant", "bytes": 1} for name in repositories.PAPER_MB},
        "shares": dict.fromkeys((table_1.MOUNTED, table_1.PACKED, table_1.MORE), shares),
    }
    rows = table_1.rows({"composition": found})
    assert len(rows) == len(repositories.PAPER_MB) + 3 * len(shares)
    assert "DB2 (Repo-1 and Repo-2)" in rows[2].what
