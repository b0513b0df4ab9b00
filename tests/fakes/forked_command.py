# SPDX-License-Identifier: Apache-2.0
"""Runs a command in a forked process, without a new import."""

import logging
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import IO

from oslo_config import cfg

LONGEST_S = 60.0
_FORK = multiprocessing.get_context("fork")


def run(
    main: Callable[[], int], *words: object, name: str = "command"
) -> subprocess.CompletedProcess[str]:
    """Run ``main`` with arguments; return its exit status and output.

    :raises TimeoutError: it does not end
    """
    argv = [name, *map(str, words)]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = _FORK.Process(target=_become, args=(main, argv, out, err))
        process.start()
        process.join(LONGEST_S)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"it does not end: {argv}")
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(argv, process.exitcode, out.read(), err.read())


def _become(main: Callable[[], int], argv: list[str], out: IO[str], err: IO[str]) -> None:
    for file, number in ((out, 1), (err, 2)):
        os.dup2(file.fileno(), number)
    sys.argv, sys.stdout, sys.stderr = argv, out, err
    logging.root.handlers.clear()  # pytest's handlers: a new process has none
    cfg.CONF.reset()  # another test may have parsed a command line
    sys.exit(main())
