# SPDX-License-Identifier: Apache-2.0
import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def no_public_authorities() -> Iterator[None]:
    """OpenSSL takes 45 ms for those of the system, in each context; no unit test needs them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SSL_CERT_FILE", os.devnull)
        yield
