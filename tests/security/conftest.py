# SPDX-License-Identifier: Apache-2.0
"""What tests of attacks are given: the same agents as functional tests."""

from tests.functional.conftest import images
from tests.functional.conftest import start

__all__ = ["images", "start"]
