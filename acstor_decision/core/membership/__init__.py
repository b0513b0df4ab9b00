# SPDX-License-Identifier: Apache-2.0
"""Which hosts are alive, and at which addresses: no I/O, no clock.

Takes samples in, rejects replayed ones, and tracks members, their load, and the addresses
that they claimed and proved.
"""
