# SPDX-License-Identifier: Apache-2.0
"""All targets, by name."""

from tests.security.fuzz import changed
from tests.security.fuzz import compressed
from tests.security.fuzz import kept
from tests.security.fuzz import said
from tests.security.fuzz import signed
from tests.security.fuzz import stored
from tests.security.fuzz import trusted

_ALL = (*stored.ALL, *changed.ALL, *compressed.ALL, *said.ALL, *trusted.ALL, *signed.ALL, *kept.ALL)
BY_NAME = {target.name: target for target in _ALL}
