# SPDX-License-Identifier: Apache-2.0
"""One image, and the reads of its guests.

A mirror answers reads from the cache, the boot image in memory, or the exchange.  Admission
limits how many reads of a guest are in progress.  Prefetching of advertised chunks follows the
reads of the same image.
"""
