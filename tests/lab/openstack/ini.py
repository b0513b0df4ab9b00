# SPDX-License-Identifier: Apache-2.0
"""Configuration files of OpenStack services, made from dictionaries of sections.

A later section extends an earlier one of the same name and overrides its options.
"""

import configparser
import pathlib
from collections.abc import Mapping
from typing import TypeAlias

Sections: TypeAlias = Mapping[str, Mapping[str, object]]


def merged(*parts: Sections) -> dict[str, dict[str, object]]:
    """Return the merged sections of ``parts``."""
    whole: dict[str, dict[str, object]] = {}
    for part in parts:
        for name, options in part.items():
            whole.setdefault(name, {}).update(options)
    return whole


def write(path: pathlib.Path, *parts: Sections) -> None:
    """Write the merged sections of ``parts``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    parser.read_dict(merged(*parts))
    with path.open("w") as file:
        parser.write(file)
