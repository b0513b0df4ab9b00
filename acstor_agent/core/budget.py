# SPDX-License-Identifier: Apache-2.0
"""What many share of something that there is only so much of, such as memory for answers.

A sharer (a host, one of its connections) may have as much as is free at the moment
and no more than ``most`` (the dynamic threshold of Choudhury and Hahne, IEEE/ACM
Transactions on Networking 6 (2), 1998, with a factor of 1).  One greedy sharer alone
gets half, and of many each gets about as much as is left over.  A quarter is kept for
those who have nothing yet, so there is something for one who comes later.

The one rule: the sum over all is never above the total.
"""

import collections
from collections.abc import Hashable


class Budget:
    """Amounts that sharers have taken.

    >>> budget = Budget(total=8, most=6)
    >>> budget.take("h1", 4)
    >>> budget.may_take("h1", 1), budget.may_take("h2", 2), budget.may_take("h2", 5)
    (False, True, False)

    :param total: for all together
    :param most: for one, however much is free
    """

    def __init__(self, total: int, most: int) -> None:
        self.used = 0
        self._total, self._most = total, most
        self._taken: collections.Counter[Hashable] = collections.Counter()

    def may_take(self, sharer: Hashable, amount: int) -> bool:
        """Say whether a sharer may have ``amount`` more; the first time all that is free."""
        own, free = self._taken[sharer], self._total - self.used
        if not own:
            return amount <= free
        return own + amount <= min(self._most, free - self._total // 4)

    def may_take_in_parts(self, sharer: Hashable, amount: int) -> bool:
        """Say whether a sharer may have ``amount`` more, in whatever parts it is taken.

        >>> budget = Budget(total=8, most=6)
        >>> budget.may_take_in_parts("h1", 3), budget.may_take_in_parts("h1", 4)
        (True, False)
        """
        own, free = self._taken.get(sharer, 0), self._total - self.used - amount
        return own + amount <= min(self._most, free - self._total // 4)

    def charge(self, sharer: Hashable, amount: int) -> None:
        """Note that a sharer has so much more, or less where ``amount`` is negative."""
        self.used += amount
        self._taken[sharer] += amount
        if not self._taken[sharer]:
            del self._taken[sharer]
