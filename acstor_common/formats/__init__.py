# SPDX-License-Identifier: Apache-2.0
"""File formats of acstor; ``doc/source/format`` describes every byte of those it defines."""
