# SPDX-License-Identifier: Apache-2.0
"""The images of this host: their mirrors, and what is fetched before a guest asks."""
