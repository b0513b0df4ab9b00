# SPDX-License-Identifier: Apache-2.0
"""The hash ring: v-nodes, locations of hosts, and the home of each chunk."""
