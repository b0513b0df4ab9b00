# SPDX-License-Identifier: Apache-2.0
"""Why no command of acstor warns of Eventlet, or says that it is loaded.

oslo.service, futurist and oslo.utils import it wherever it is installed, and all of
them require it, so it cannot be kept out.  Nothing of acstor runs on it: an operator
who reads that it is deprecated can do nothing about it.  What loads acstor as a
plug-in decides for itself, so only commands call this.
"""

import logging
import warnings


def silence() -> None:
    """Show this one warning no more, which comes with the first import, nor that import itself."""
    logging.getLogger("oslo_service.backend").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=r"\s*Eventlet is deprecated")
