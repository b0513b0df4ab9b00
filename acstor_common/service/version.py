# SPDX-License-Identifier: Apache-2.0
"""Which version of acstor this is."""

import functools
import importlib.metadata


@functools.cache
def installed() -> str:
    """Return it; "unknown" where acstor runs without being installed."""
    try:
        return importlib.metadata.version("acstor")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
