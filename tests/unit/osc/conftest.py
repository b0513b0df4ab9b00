# SPDX-License-Identifier: Apache-2.0
"""Commands run against the API and its database."""

from tests.unit.decision.api.conftest import api_configuration
from tests.unit.decision.api.conftest import bus
from tests.unit.decision.api.conftest import glance
from tests.unit.decision.conftest import configure
from tests.unit.decision.conftest import store
from tests.unit.decision.conftest import tables

__all__ = ["api_configuration", "bus", "configure", "glance", "store", "tables"]
