# SPDX-License-Identifier: Apache-2.0
"""QEMU's block trace is parsed into requests for files."""

import pytest

from acstor_common import errors
from evaluation.papers import s2_boot

_SHARED = """\
7@100.000000:bdrv_co_preadv_part bs 0xa0 offset 0 bytes 112 flags 0x0
7@100.500000:blk_co_preadv blk 0x99 bs 0xb0 offset 0 bytes 512 flags 0x0
7@100.500010:bdrv_co_preadv_part bs 0xb0 offset 0 bytes 512 flags 0x0
7@100.500020:bdrv_co_preadv_part bs 0xc0 offset 0 bytes 512 flags 0x0
7@100.500030:bdrv_co_preadv_part bs 0xd0 offset 0 bytes 512 flags 0x0
7@101.000000:bdrv_co_pwritev_part bs 0xb0 offset 8192 bytes 4096 flags 0x0
7@101.000010:bdrv_co_preadv_part bs 0xc0 offset 0 bytes 65536 flags 0x0
7@101.000020:bdrv_co_preadv_part bs 0xd0 offset 0 bytes 65536 flags 0x0
7@101.000030:bdrv_co_pwritev_part bs 0xa0 offset 327680 bytes 65536 flags 0x0
7@109.000000:bdrv_co_preadv_part bs 0xd0 offset 0 bytes 4096 flags 0x0
"""


def test_requests_are_assigned_to_their_file():
    ops = s2_boot.requests(_SHARED, 105.0, shares_image=True)
    assert [op[1:] for op in ops] == [
        (s2_boot.READ_OWN, 0, 112),
        (s2_boot.READ, 0, 512),
        (s2_boot.READ, 0, 65536),
        (s2_boot.WRITE, 327680, 65536),
    ]
    assert sum(op[0] for op in ops) == pytest.approx(1.00003)


def test_guest_with_a_copy_reads_and_writes_one_file():
    text = "".join(
        f"7@{at}.000000:bdrv_co_p{kind}v_part bs {node} offset 0 bytes 512 flags 0x0\n"
        for at, kind, node in ((1, "read", "0xa"), (1, "read", "0xb"), (2, "write", "0xb"))
    )
    ops = s2_boot.requests(text, 3.0, shares_image=False)
    assert [op[1] for op in ops] == [s2_boot.READ, s2_boot.WRITE]


def test_trace_of_other_nodes_is_refused():
    with pytest.raises(errors.Unusable, match="4 nodes"):
        s2_boot.requests(_SHARED, 105.0, shares_image=False)
