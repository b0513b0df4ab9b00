# SPDX-License-Identifier: Apache-2.0
"""Basic values: IDs, chunk numbers, addresses, boot timelines.

Modules here import no other package of acstor, except ``errors``.
"""
