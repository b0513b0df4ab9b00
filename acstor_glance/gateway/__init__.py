# SPDX-License-Identifier: Apache-2.0
"""``acstor-glance-gateway``: ranges of images, from stores of which Glance's API gives none."""

from acstor_common.service import eventlet_warning

eventlet_warning.silence()
