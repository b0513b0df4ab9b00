# SPDX-License-Identifier: Apache-2.0
"""What the log is told of requests that fail; the mount itself is tested by real agents."""

import pyfuse3
import pytest
import trio

from acstor_agent.core import log_limit
from acstor_agent.mount import fuse
from acstor_common import errors


@fuse._answers_errors
async def read(operations, handle, offset, size):
    raise errors.ChunkMissing(f"byte {offset}", "the source")


@pytest.mark.expect_log("read .* byte 0 is not available")
async def test_guest_that_fails_again_and_again_does_not_fill_the_log(
    caplog, monkeypatch, autojump_clock
):
    monkeypatch.setattr(fuse, "_told", log_limit.LogLimit(fuse.TELLS_EVERY_S))
    for offset in range(500):
        with pytest.raises(pyfuse3.FUSEError):
            await read(None, 7, offset, 4096)
    with pytest.raises(pyfuse3.FUSEError):
        await read(None, 8, 0, 4096)  # another guest's
    assert len(caplog.records) == 2
    await trio.sleep(fuse.TELLS_EVERY_S)
    with pytest.raises(pyfuse3.FUSEError):
        await read(None, 7, 0, 4096)
    assert "(and 499 like it)" in caplog.records[-1].getMessage()
