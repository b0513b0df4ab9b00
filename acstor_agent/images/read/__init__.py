# SPDX-License-Identifier: Apache-2.0
"""One image, and the reads of its guests: admission, cache, boot image, exchange."""
