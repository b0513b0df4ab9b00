# SPDX-License-Identifier: Apache-2.0
"""The decision service: adapts the v-node table to live hosts and their traffic."""
