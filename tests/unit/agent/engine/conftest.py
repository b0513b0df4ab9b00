# SPDX-License-Identifier: Apache-2.0
import pytest

from tests.fakes import one_machine


@pytest.fixture
def machine() -> one_machine.Machine:
    return one_machine.Machine()
