# SPDX-License-Identifier: Apache-2.0
"""Words that every acstor process shares: ids, formats, wire, errors, the ring.

Nothing here does I/O, reads a clock or rolls dice.
"""
