# SPDX-License-Identifier: Apache-2.0
"""Installed version of acstor."""

import functools
import importlib.metadata


@functools.cache
def installed() -> str:
    """Return the version; "unknown" if acstor is not installed."""
    try:
        return importlib.metadata.version("acstor")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
