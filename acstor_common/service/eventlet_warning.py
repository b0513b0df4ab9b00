# SPDX-License-Identifier: Apache-2.0
"""Suppression of the warning of Eventlet, which only OpenStack's libraries import."""

import logging
import warnings


def silence() -> None:
    """Suppress Eventlet's deprecation warning and oslo.service's log message about it."""
    logging.getLogger("oslo_service.backend").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=r"\s*Eventlet is deprecated")
