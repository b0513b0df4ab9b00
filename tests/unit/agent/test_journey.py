# SPDX-License-Identifier: Apache-2.0
import itertools

import pytest

from acstor_agent.chunks import journey
from acstor_agent.chunks import want
from acstor_agent.core.exchange import errand
from acstor_common import errors
from acstor_common import ids

IMAGE = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
WANT = want.Want(IMAGE, 0, 65536, ids.cid_of(b"a chunk"))
MISSING, REFUSED, AWAY = (
    kind("the chunk", kind.__name__)
    for kind in (errors.ChunkMissing, errors.ChunkRefused, errors.SourceUnreachable)
)


@pytest.mark.parametrize(
    ("failures", "worst"),
    [
        *((order, AWAY) for order in itertools.permutations([MISSING, REFUSED, AWAY])),
        *((order, REFUSED) for order in itertools.permutations([MISSING, REFUSED])),
        ([MISSING], MISSING),
    ],
)
def test_failure_that_leaves_most_hope_is_told(failures, worst):
    made = journey.Journey(WANT, errand.Errand.GUEST_WAITS, [])
    made.failures.extend(failures)
    assert made.worst() is worst
