# SPDX-License-Identifier: Apache-2.0
"""All operations of the API, in the order of the documents."""

from acstor_decision.api.v1 import authority
from acstor_decision.api.v1 import boots
from acstor_decision.api.v1 import checkpoints
from acstor_decision.api.v1 import enrolments
from acstor_decision.api.v1 import hosts
from acstor_decision.api.v1 import image_actions
from acstor_decision.api.v1 import image_locality
from acstor_decision.api.v1 import images
from acstor_decision.api.v1 import listeners
from acstor_decision.api.v1 import needed_images
from acstor_decision.api.v1 import rings
from acstor_decision.api.v1 import status
from acstor_decision.api.v1 import traffic

ALL = (
    *status.OPERATIONS,
    *hosts.OPERATIONS,
    *enrolments.OPERATIONS,
    *authority.OPERATIONS,
    *images.OPERATIONS,
    *image_actions.OPERATIONS,
    *image_locality.OPERATIONS,
    *needed_images.OPERATIONS,
    *listeners.OPERATIONS,
    *boots.OPERATIONS,
    *checkpoints.OPERATIONS,
    *rings.OPERATIONS,
    *traffic.OPERATIONS,
)
