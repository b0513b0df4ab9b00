# SPDX-License-Identifier: Apache-2.0
"""The vault: stores sealed chunks and manifests of other hosts.

``vault_server`` accepts connections, ``vault_api`` answers requests, ``vault_store`` manages the
files.  The other modules limit usage and delete obsolete data.
"""
