# SPDX-License-Identifier: Apache-2.0
"""Demo: guests boot one image on several hosts; then one host gets other traffic.

The image is a compressed qcow2, as distributions publish theirs, and is not converted.  The
demo first makes its chunk map and boot image, as the services beside Glance do after an upload.

``python -m tests.lab.demo`` as root; ``tools/demo.sh`` installs what it needs
first.  It shows progress, reports software emulation, and leaves only the results.
"""

import argparse
import os
import pathlib
import sys
import time
from collections.abc import Sequence

from acstor_common import errors
from tests.lab import boot_methods
from tests.lab import demo_report
from tests.lab import guest
from tests.lab import guest_image
from tests.lab import runs

EXIT_FAILED = 1
EXIT_STOPPED = 130


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=4, metavar="N", help="hosts (default: 4)")
    parser.add_argument(
        "--link-mbit",
        type=float,
        default=100.0,
        metavar="R",
        help="rate of each link, the image server's too, in Mbit/s (default: 100)",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="before, boot by full copy, by qcow2 over HTTP, and by acstor from a raw image "
        "without a boot image as well (some minutes more)",
    )
    parser.add_argument(
        "--results",
        type=pathlib.Path,
        default=runs.CHECKOUT / "results",
        metavar="FOLDER",
        help="where figures and pictures go (default: results)",
    )
    return parser


def say(words: str) -> None:
    """Print a line of progress."""
    print(words, file=sys.stderr, flush=True)


def run(options: argparse.Namespace) -> None:
    """Run one way, or all ways in turn, and show the results."""
    begin = time.monotonic()
    accelerator = guest.accelerator()
    say(f"guests run on {demo_report.EMULATION[accelerator]}")
    image = guest_image.ensure(say)
    results, failed = [], {}
    for way in boot_methods.WAYS if options.compare else (boot_methods.ACSTOR,):
        try:
            results.append(boot_methods.play(way, options.hosts, options.link_mbit, image, say))
        except errors.Unusable as failure:  # QEMU's curl driver may hang forever, as on Debian 13
            if way not in boot_methods.BASELINES:
                raise
            label, _ = boot_methods.WAYS[way]
            say(f"{label}: failed, the demo goes on without it: {failure}")
            failed[label] = str(failure).partition("\n")[0]
    setting = demo_report.Setting(
        hosts=options.hosts,
        link_mbit=options.link_mbit,
        accelerator=accelerator,
        cpus=os.cpu_count() or 1,
        image=image.info,
        qcow2_bytes=image.compressed.stat().st_size,
    )
    paths = demo_report.save(setting, results, options.results, failed)
    print(demo_report.text(setting, results, failed))
    say(f"{time.monotonic() - begin:.0f} s in all; see {' and '.join(map(str, paths))}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit status."""
    options = make_parser().parse_args(argv)
    try:
        run(options)
    except (errors.AcstorError, ValueError) as failure:
        say(f"demo: {failure}")
        return EXIT_FAILED
    except KeyboardInterrupt:
        say("demo: stopped")
        return EXIT_STOPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
