# SPDX-License-Identifier: Apache-2.0
"""Protocol of vaults and their clients: names of objects, HTTP over TLS."""
