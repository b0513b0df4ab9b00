# SPDX-License-Identifier: Apache-2.0
"""The gateway's WSGI application with the constants in ``tuned.VARIABLE``.

uWSGI puts this folder on the module path; it has no other module, which could hide a package.
"""

import json
import os
import pathlib
import runpy

_TUNED = runpy.run_path(str(pathlib.Path(__file__).resolve().parents[1] / "tuned.py"))
_TUNED["change"](json.loads(os.environ[_TUNED["VARIABLE"]]))

from acstor_glance.gateway.wsgi import application  # noqa: E402 - the constants come first

__all__ = ["application"]
