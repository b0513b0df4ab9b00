# SPDX-License-Identifier: Apache-2.0
"""Suppression of Eventlet's deprecation warning in commands.

oslo.service, futurist and oslo.utils import Eventlet if it is installed; acstor does not use it.
"""

import logging
import warnings


def silence() -> None:
    """Suppress Eventlet's deprecation warning and oslo.service's log message about it."""
    logging.getLogger("oslo_service.backend").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=r"\s*Eventlet is deprecated")
