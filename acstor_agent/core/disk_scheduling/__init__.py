# SPDX-License-Identifier: Apache-2.0
"""The order of the host's disk requests (Ling 2015); start with ``request`` and ``policy``."""
