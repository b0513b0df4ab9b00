# SPDX-License-Identifier: Apache-2.0
"""The images of this host: reads, attachment, prefetching, caching and pins."""
