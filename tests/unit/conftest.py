# SPDX-License-Identifier: Apache-2.0
import os
from collections.abc import Iterator

import pytest

from tests.fakes import bus_log_limit


@pytest.fixture(autouse=True, scope="module")
def no_public_authorities() -> Iterator[None]:
    """The system's authorities cost OpenSSL 45 ms in each context; no unit test needs them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SSL_CERT_FILE", os.devnull)
        yield


@pytest.fixture(autouse=True)
def own_log_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the log lines of oslo.messaging for each test, not for the process."""
    bus_log_limit.renew(monkeypatch)
