# SPDX-License-Identifier: Apache-2.0
"""All targets, by name."""

from tests.security.fuzz import changed
from tests.security.fuzz import compressed
from tests.security.fuzz import kept
from tests.security.fuzz import nbd_answers
from tests.security.fuzz import said
from tests.security.fuzz import signed
from tests.security.fuzz import stored
from tests.security.fuzz import trusted

_FAMILIES = (stored, changed, compressed, said, trusted, signed, kept, nbd_answers)
BY_NAME = {target.name: target for family in _FAMILIES for target in family.ALL}
