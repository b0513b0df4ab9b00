# SPDX-License-Identifier: Apache-2.0
"""How much somebody may have in a second; see :mod:`acstor_common.rates`."""

from acstor_common.rates import Buckets as Buckets
from acstor_common.rates import Rate as Rate
