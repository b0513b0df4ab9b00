# SPDX-License-Identifier: Apache-2.0
"""The v-node tables as this host sees them: homes, owners, neighbours."""
