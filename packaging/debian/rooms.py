# SPDX-License-Identifier: Apache-2.0
"""Gives each package its room of what was built, with the room's commands and entry points.

One distribution of Python is many packages here.  Each has entry points for what it brings itself,
so that nothing looks for a room that is not installed.  Usage: rooms.py VERSION, in the source.
"""

import pathlib
import shutil
import sys
import tomllib

ROOMS = {
    "acstor_agent": "acstor-agent",
    "acstor_checkpoint": "acstor-checkpoint",
    "acstor_common": "python3-acstor",
    "acstor_decision": "acstor-decision",
    "acstor_glance": "acstor-glance",
    "acstor_nova": "acstor-nova",
    "acstor_osc": "python3-acstor-osc",
    "acstor_simulator": "acstor-simulator",
}
FILES = ("bin/{}", "share/man/*/{}.1", "share/bash-completion/*/{}")
"""Of a command; the last two unless built with nodoc."""
BUILT = pathlib.Path("debian/tmp/usr")
LIBRARIES = "lib/python3/dist-packages"


def of_room(room: str, names: dict[str, str]) -> dict[str, str]:
    """Return those of the entry points that lead into a room."""
    return {name: at for name, at in names.items() if at.startswith(f"{room}.")}


def metadata(room: str, version: str) -> str:
    """Return what Python is told of a room; the library has the name of the whole."""
    name = "acstor" if room == "acstor_common" else room.replace("_", "-")
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nLicense: Apache-2.0\n"


def entry_points(room: str, groups: dict[str, dict[str, str]]) -> str:
    """Return a room's entry points as Python reads them."""
    text = ""
    for group, names in groups.items():
        if own := of_room(room, names):
            text += f"[{group}]\n" + "".join(f"{name} = {at}\n" for name, at in own.items()) + "\n"
    return text


def place(room: str, package: str, version: str, project: dict) -> None:
    """Put a room into the folder of its package."""
    usr = pathlib.Path("debian", package, "usr")
    [built] = BUILT.glob(f"lib/python3*/dist-packages/{room}")
    (usr / LIBRARIES).mkdir(parents=True)
    shutil.move(built, usr / LIBRARIES / room)
    name = "acstor" if room == "acstor_common" else room
    told = usr / LIBRARIES / f"{name}-{version}.dist-info"
    told.mkdir()
    (told / "METADATA").write_text(metadata(room, version))
    (told / "entry_points.txt").write_text(entry_points(room, project["entry-points"]))
    for script in of_room(room, project["scripts"]):
        for pattern in FILES:
            for built in BUILT.glob(pattern.format(script)):
                target = usr / built.relative_to(BUILT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(built, target)


if __name__ == "__main__":
    with open("pyproject.toml", "rb") as file:
        described = tomllib.load(file)["project"]
    for one, of_package in ROOMS.items():
        place(one, of_package, sys.argv[1], described)
