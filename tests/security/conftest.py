# SPDX-License-Identifier: Apache-2.0
"""What tests of attacks are given: the same agents and services as functional tests."""

from tests.functional.conftest import images
from tests.functional.conftest import openstack_lab
from tests.functional.conftest import rabbitmq
from tests.functional.conftest import start

__all__ = ["images", "openstack_lab", "rabbitmq", "start"]
