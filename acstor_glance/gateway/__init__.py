# SPDX-License-Identifier: Apache-2.0
"""``acstor-glance-gateway``: serves ranges of images where Glance cannot."""

from acstor_common.service import eventlet_warning

eventlet_warning.silence()
