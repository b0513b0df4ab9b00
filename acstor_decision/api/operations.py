# SPDX-License-Identifier: Apache-2.0
"""Every operation of the API, in the order of the documents."""

from acstor_decision.api import authority
from acstor_decision.api import boots
from acstor_decision.api import checkpoints
from acstor_decision.api import enrolments
from acstor_decision.api import hosts
from acstor_decision.api import image_actions
from acstor_decision.api import images
from acstor_decision.api import listeners
from acstor_decision.api import needed
from acstor_decision.api import rings
from acstor_decision.api import status
from acstor_decision.api import traffic

ALL = (
    *status.OPERATIONS,
    *hosts.OPERATIONS,
    *enrolments.OPERATIONS,
    *authority.OPERATIONS,
    *images.OPERATIONS,
    *image_actions.OPERATIONS,
    *needed.OPERATIONS,
    *listeners.OPERATIONS,
    *boots.OPERATIONS,
    *checkpoints.OPERATIONS,
    *rings.OPERATIONS,
    *traffic.OPERATIONS,
)
