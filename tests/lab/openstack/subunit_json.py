# SPDX-License-Identifier: Apache-2.0
"""Converts a subunit stream on stdin to JSON on stdout, in the services' Python.

It imports nothing of this checkout, since that Python lacks the lab's dependencies.
"""

import json
import sys
from typing import Any

_OUTCOMES = {"success": "passed", "skip": "skipped"}


def main() -> None:
    """Write an object: a test's name to its outcome, its seconds, and the reason."""
    import subunit  # only the services' Python has these two
    import testtools

    tests: dict[str, Any] = {}

    def keep(test: dict[str, Any]) -> None:
        if test["status"] in ("exists", "inprogress"):
            return  # it was listed before the run, or the run was cut
        texts = {name: content.as_text() for name, content in test["details"].items()}
        begin, end = test["timestamps"]
        tests[test["id"].partition("[")[0]] = {
            "outcome": _OUTCOMES.get(test["status"], "failed"),
            "seconds": round((end - begin).total_seconds(), 2) if begin and end else None,
            "reason": texts.get("reason") or texts.get("traceback", ""),
        }

    stream = subunit.ByteStreamToStreamResult(sys.stdin.buffer, non_subunit_name="stdout")
    result = testtools.StreamToDict(keep)
    result.startTestRun()
    stream.run(result)
    result.stopTestRun()
    json.dump(tests, sys.stdout)


if __name__ == "__main__":
    main()
