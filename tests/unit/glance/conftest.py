# SPDX-License-Identifier: Apache-2.0
import pytest

from tests.fakes import memory_images


@pytest.fixture
def images() -> memory_images.MemoryImages:
    return memory_images.MemoryImages()
