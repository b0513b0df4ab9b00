# SPDX-License-Identifier: Apache-2.0
"""The public cache: index, slots, eviction and pins. No I/O."""
