# SPDX-License-Identifier: Apache-2.0
from tests.unit.conftest import no_public_authorities

__all__ = ["no_public_authorities"]
