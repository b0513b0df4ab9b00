# SPDX-License-Identifier: Apache-2.0
"""``acstor-agent-holder``: keeps the agent's mount while its container is replaced."""

import argparse
import logging
import pathlib
import signal
import sys

from acstor_agent.process import fd_holder
from acstor_common import errors
from acstor_common.service import argument_types
from acstor_common.service import console_script
from acstor_common.service import log_format
from acstor_common.service import log_stream
from acstor_common.service import signals


def main() -> int:
    """Hold agents' descriptors until SIGTERM or SIGINT; return an exit status."""
    parser = argparse.ArgumentParser(description=argument_types.help_text(__doc__))
    parser.add_argument("state_dir", type=pathlib.Path, help="[acstor_agent] state_dir")
    parser.add_argument(
        "--check", action="store_true", help="only see whether a holder answers there"
    )
    given = parser.parse_args()
    if given.check:
        return check(given.state_dir)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    log_format.install()
    log_stream.install()
    signals.install()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        with fd_holder.FdHolder(given.state_dir) as held:
            held.serve()
    except errors.Unusable as e:
        print(f"acstor-agent-holder: {console_script.error_text(e)}", file=sys.stderr)
        return 1
    return 0


def check(state_dir: pathlib.Path) -> int:
    """Return exit status 0 if a holder responds, else 1."""
    if fd_holder.is_answering(state_dir):
        return 0
    print(f"acstor-agent-holder: {state_dir}: no holder answers", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
