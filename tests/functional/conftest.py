# SPDX-License-Identifier: Apache-2.0
"""Agents for functional tests: each test has its own, and its own images."""

import contextlib
import pathlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local


@pytest.fixture
def images(tmp_path: pathlib.Path) -> local.ImageFolder:
    return local.ImageFolder(tmp_path / "images")


@pytest.fixture
def start(
    tmp_path: pathlib.Path, images: local.ImageFolder
) -> Iterator[Callable[..., agents.Agent]]:
    """Return what starts an agent and waits until it serves; it ends with the test."""
    with contextlib.ExitStack() as stack:

        def begin(name: str = "h1", **options: Any) -> agents.Agent:
            agent = hosts.running(tmp_path / name, images, name=name, **options)
            return stack.enter_context(agent)

        yield begin
