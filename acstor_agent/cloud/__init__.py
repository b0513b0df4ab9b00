# SPDX-License-Identifier: Apache-2.0
"""This host in its cloud: message bus, v-node table, certificate, traffic samples."""
