# SPDX-License-Identifier: Apache-2.0
"""Number of cases of each kind, their seed, and the count of accepted ones."""

import os
import time
from collections.abc import Callable

CASES = int(os.environ.get("ACSTOR_FUZZ_CASES", "100"))
SEED = int(os.environ.get("ACSTOR_FUZZ_SEED", "1"))


def check_some_taken(what: str, is_taken: Callable[[], bool], case_s: float) -> None:
    """Try all cases; check that some are accepted and some refused, in time.

    :param is_taken: tries the next case; its exceptions are findings
    :param case_s: time limit of a case, on average
    """
    found, began_s = 0, time.monotonic()
    for number in range(CASES):
        try:
            found += is_taken()
        except BaseException as e:
            e.add_note(f"answer {number} of seed {SEED}")
            raise
    took_s = time.monotonic() - began_s
    print(f"{what}: {found} of {CASES} taken, in {took_s:.1f} s")
    assert CASES // 40 < found < CASES and took_s < CASES * case_s
