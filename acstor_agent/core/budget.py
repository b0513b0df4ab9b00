# SPDX-License-Identifier: Apache-2.0
"""Shares a limited resource, such as memory for responses, among many users.

Dynamic threshold (Choudhury and Hahne, IEEE/ACM Transactions on Networking 6 (2), 1998, factor 1):
a user may have as much as is free, up to ``user_limit``; new users have a quarter in reserve.
"""

import collections
from collections.abc import Hashable


class Budget:
    """Amounts charged to users.

    >>> budget = Budget(total=8, user_limit=6)
    >>> budget.charge("h1", 4)
    >>> budget.may_take("h1", 1), budget.may_take("h2", 2), budget.may_take("h2", 5)
    (False, True, False)
    """

    def __init__(self, total: int, user_limit: int) -> None:
        self.used = 0
        self._total, self._user_limit = total, user_limit
        self._taken: collections.Counter[Hashable] = collections.Counter()

    def may_take(self, user: Hashable, amount: int) -> bool:
        """Return whether a user may take ``amount`` more; its first may come from the reserve."""
        own, free = self._taken[user], self._total - self.used
        if not own:
            return amount <= free
        return own + amount <= min(self._user_limit, free - self._total // 4)

    def may_take_in_parts(self, user: Hashable, amount: int) -> bool:
        """Return whether a user may take ``amount`` more in parts, none from the reserve.

        >>> budget = Budget(total=8, user_limit=6)
        >>> budget.may_take_in_parts("h1", 3), budget.may_take_in_parts("h1", 4)
        (True, False)
        """
        own, free = self._taken.get(user, 0), self._total - self.used - amount
        return own + amount <= min(self._user_limit, free - self._total // 4)

    def charge(self, user: Hashable, amount: int) -> None:
        """Charge ``amount`` to a user; a negative amount releases it."""
        self.used += amount
        self._taken[user] += amount
        if not self._taken[user]:
            del self._taken[user]
