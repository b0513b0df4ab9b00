# SPDX-License-Identifier: Apache-2.0
"""The vault: keeps sealed chunks and manifests for other hosts.

``vault_server`` accepts connections, ``vault_api`` answers requests, ``vault_store`` reads and
writes the files.  The other modules bound what a host may use and delete what nobody needs.
"""
