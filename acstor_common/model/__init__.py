# SPDX-License-Identifier: Apache-2.0
"""Values that all other packages name: ids, chunk numbers, addresses, timelines.

Pure data.  No module here imports another package of acstor, except ``errors``.
"""
