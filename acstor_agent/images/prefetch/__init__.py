# SPDX-License-Identifier: Apache-2.0
"""Prefetching of whole images and boot images; the chunks may be evicted."""
