# SPDX-License-Identifier: Apache-2.0
"""Why no command of acstor warns of Eventlet.

oslo.service, futurist and oslo.utils import it wherever it is installed, and all of
them require it, so it cannot be kept out.  Nothing of acstor runs on it: an operator
who reads that it is deprecated can do nothing about it.  What loads acstor as a
plug-in decides for itself, so only commands call this.
"""

import warnings


def silence() -> None:
    """Show this one warning no more; it comes with the first import."""
    warnings.filterwarnings("ignore", message=r"\s*Eventlet is deprecated")
