# SPDX-License-Identifier: Apache-2.0
import pathlib

import pytest
from oslo_config import cfg

from tests.fakes import glance_options
from tests.fakes import memory_images


@pytest.fixture
def images() -> memory_images.MemoryImages:
    return memory_images.MemoryImages()


@pytest.fixture
def conf(tmp_path: pathlib.Path) -> cfg.ConfigOpts:
    """Return the options of a listener with a state folder of its own."""
    return glance_options.conf(state_dir=tmp_path / "state")
