# SPDX-License-Identifier: Apache-2.0
"""The vault: stores sealed chunks and manifests of other hosts."""
