# SPDX-License-Identifier: Apache-2.0
"""The agent's next version: a copy of this tree whose workers log another version."""

import pathlib
import shutil

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOMS = ("acstor_agent", "acstor_common")
SERVES, NEXT_SERVES = "worker %d serves %s", "worker %d of the next version serves %s"
NEXT_SAYS = "of the next version serves"


def make(tree: pathlib.Path) -> pathlib.Path:
    """Create the next version's code in ``tree``, for PYTHONPATH; return ``tree``.

    :raises ValueError: this version logs something else
    """
    for room in ROOMS:
        shutil.copytree(ROOT / room, tree / room, ignore=shutil.ignore_patterns("__pycache__"))
    path = tree / "acstor_agent" / "worker.py"
    code = path.read_text()
    if code.count(SERVES) != 1:
        raise ValueError(f"{path} does not say once: {SERVES}")
    path.write_text(code.replace(SERVES, NEXT_SERVES))
    return tree
