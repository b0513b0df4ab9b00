# SPDX-License-Identifier: Apache-2.0
"""Small mechanisms: limits, rates, supervision, atomic files."""
