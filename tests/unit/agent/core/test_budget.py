# SPDX-License-Identifier: Apache-2.0
from acstor_agent.core import budget


def test_user_may_take_what_is_free_up_to_its_limit_beside_the_reserve():
    shared = budget.Budget(total=100, user_limit=60)
    assert shared.may_take("h1", 100) and not shared.may_take("h1", 101)
    assert shared.may_take_in_parts("h1", 37) and not shared.may_take_in_parts("h1", 38)
    shared.charge("h1", 30)
    assert shared.may_take("h1", 15) and not shared.may_take("h1", 16)
    assert shared.may_take("h2", 70) and not shared.may_take("h2", 71)
    small = budget.Budget(total=100, user_limit=10)
    small.charge("h1", 4)
    assert small.may_take("h1", 6) and not small.may_take("h1", 7)
    assert small.may_take_in_parts("h2", 10) and not small.may_take_in_parts("h2", 11)


def test_released_amount_is_free_again_and_the_user_is_new():
    shared = budget.Budget(total=8, user_limit=6)
    shared.charge("h1", 8)
    assert not shared.may_take("h1", 1) and not shared.may_take("h2", 1)
    shared.charge("h1", -8)
    assert shared.used == 0 and not shared._taken
    assert shared.may_take("h1", 8)
