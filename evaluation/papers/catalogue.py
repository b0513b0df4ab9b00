# SPDX-License-Identifier: Apache-2.0
"""The five papers."""

from evaluation.papers import s0
from evaluation.papers import s1
from evaluation.papers import s2
from evaluation.papers import s3
from evaluation.papers import s4

PAPERS = (s0.PAPER, s1.PAPER, s2.PAPER, s3.PAPER, s4.PAPER)
