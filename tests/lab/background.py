# SPDX-License-Identifier: Apache-2.0
"""Threads that work for a block."""

import threading
from collections.abc import Callable
from collections.abc import Iterable
from typing import Self


class Background:
    """Context manager: runs functions in threads; ``is_over`` is set when the block ends."""

    def __init__(self, work: Iterable[Callable[[], None]]) -> None:
        self.is_over = threading.Event()
        self._threads = [threading.Thread(target=one) for one in work]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        for thread in self._threads:
            thread.join()
