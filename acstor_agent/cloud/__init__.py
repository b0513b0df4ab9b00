# SPDX-License-Identifier: Apache-2.0
"""This host as a part of its cloud: the message bus, the v-node table, what it carries."""
