# SPDX-License-Identifier: Apache-2.0
"""Sizes of an installation: the measured numbers of doc/source/admin/operate.rst.

``python -m evaluation.bench.sizes`` prints JSON.  It needs root and FUSE.  Memory is resident
memory of all processes of one agent, mapped files included; the database is SQLite, with as many
hosts and images as in R1, and message sizes are those on the bus.
"""

import json
import pathlib
import re
import sys
import tempfile
from typing import Any

from acstor_common.wire import decision_messages
from evaluation.bench import r1_rest_list
from tests.fakes import hosts
from tests.lab import agents
from tests.lab import local
from tests.unit.decision.api import conftest

IMAGE_BYTES = 1 << 30
READ_BYTES = 1 << 28
PIECE_BYTES = 1 << 20


def memory_bytes(agent: agents.Agent) -> int:
    """Return the resident memory of the agent's processes."""
    pids, found = [agent.pid], 0
    while pids:
        pid = pids.pop()
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        found += int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) << 10
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
        pids += [int(child) for child in children.split()]
    return found


def of_agent(folder: pathlib.Path) -> dict[str, int]:
    """Return an agent's memory: started, with an image, and after a guest's reads."""
    images = local.ImageFolder(folder / "images")
    image_id = images.add(local.random_bytes(IMAGE_BYTES))
    with hosts.running(folder / "h1", images, life_s=600) as agent:
        found = {"agent_started_bytes": memory_bytes(agent)}
        agent.ctl("attach", image_id)
        found["agent_with_image_bytes"] = memory_bytes(agent)
        with agent.image_path(image_id).open("rb") as mirror:
            for _ in range(READ_BYTES // PIECE_BYTES):
                mirror.read(PIECE_BYTES)
        found["agent_after_reading_bytes"] = memory_bytes(agent)
    [chunk_map] = images.folder.glob("*.acmap")
    return found | {"chunk_map_bytes_of_a_gib": chunk_map.stat().st_size}


def of_decision(folder: pathlib.Path) -> dict[str, Any]:
    """Return database and message sizes for a thousand hosts with ten images each."""
    file = folder / "decision.sqlite"
    client = r1_rest_list.make_client(f"sqlite:///{file}")
    table = client.get("/v1/ring", headers=conftest.ADMIN)
    sample = conftest.sample(1, images=r1_rest_list.images_of(1))
    return {
        "hosts": r1_rest_list.HOSTS,
        "database_bytes": file.stat().st_size,
        "table_in_rest_bytes": len(table.data),
        "sample_bytes": len(json.dumps(decision_messages.encode(sample))),
        "sample_without_images_bytes": len(
            json.dumps(decision_messages.encode(conftest.sample(1, images=None)))
        ),
    }


def main() -> int:
    """Measure, and print."""
    with tempfile.TemporaryDirectory(prefix="acstor-sizes-") as name:
        folder = pathlib.Path(name)
        print(json.dumps(of_decision(folder) | of_agent(folder), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
