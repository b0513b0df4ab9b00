# SPDX-License-Identifier: Apache-2.0
from acstor_common.util import lru_table


def test_least_recently_set_or_used_entry_is_evicted_and_returned():
    table = lru_table.LruTable(2)
    table["a"], table["b"] = 1, 2
    assert table.get("a") == 1  # does not count as use
    assert table.put("c", 3) == ("a", 1)
    assert table.get_as_used("b") == 2 and table.get_as_used("a") is None
    table["d"] = 4
    assert dict(table) == {"b": 2, "d": 4}


def test_overwritten_entry_evicts_nothing_and_becomes_the_newest():
    table = lru_table.LruTable(2)
    table["a"], table["b"] = 1, 2
    assert table.put("a", 3) is None
    assert list(table.items()) == [("b", 2), ("a", 3)]
    assert table.setdefault("c", 5) == 5 and list(table) == ["a", "c"]
    table.update(d=6)
    assert list(table) == ["c", "d"]
