# SPDX-License-Identifier: Apache-2.0
"""The decision service: adapts the ring to the hosts that live and to their traffic."""
