# SPDX-License-Identifier: Apache-2.0
"""What vaults and their clients share: names of objects, HTTP over TLS."""
