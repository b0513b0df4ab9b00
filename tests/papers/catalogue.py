# SPDX-License-Identifier: Apache-2.0
"""The five papers."""

from tests.papers import s0
from tests.papers import s1
from tests.papers import s2
from tests.papers import s3
from tests.papers import s4

PAPERS = (s0.PAPER, s1.PAPER, s2.PAPER, s3.PAPER, s4.PAPER)
