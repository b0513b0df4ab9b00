# SPDX-License-Identifier: Apache-2.0
"""The REST API for a WSGI server, with changed constants (:mod:`tests.lab.tuned`).

The environment variable ``tuned.VARIABLE`` has them, as JSON.
"""

import json
import os

from tests.lab import tuned

if tuned.VARIABLE in os.environ:
    tuned.change(json.loads(os.environ[tuned.VARIABLE]))
    from acstor_decision.wsgi import application as application
