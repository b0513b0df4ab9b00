# SPDX-License-Identifier: Apache-2.0
"""The gateway's WSGI application with the constants that ``tuned.VARIABLE`` names.

uWSGI imports it from this folder by its own name, where nothing hides a package.
"""

import json
import os
import pathlib
import runpy

_TUNED = runpy.run_path(str(pathlib.Path(__file__).resolve().parents[1] / "tuned.py"))
_TUNED["change"](json.loads(os.environ[_TUNED["VARIABLE"]]))

from acstor_glance.gateway.wsgi import application  # noqa: E402  the constants come first

__all__ = ["application"]
