# SPDX-License-Identifier: Apache-2.0
"""The arguments of commands that make a file of an image."""

import argparse
import pathlib


def add_files(parser: argparse.ArgumentParser, metavar: str, ending: str) -> None:
    """Add the image that is read and the file that is made of it."""
    parser.add_argument("image", metavar="IMAGE", type=pathlib.Path, help="file of a raw image")
    parser.add_argument(
        *("-o", "--output"),
        metavar=metavar,
        type=pathlib.Path,
        help=f"file to write; by default IMAGE with the ending {ending}",
    )
