# SPDX-License-Identifier: Apache-2.0
"""Moves what was built into the Debian packages: modules, commands and entry points.

One distribution of Python becomes many packages.  Each has only its own entry points, so that
nothing looks for modules that are not installed.  Usage: split_packages.py VERSION, in the source.
"""

import pathlib
import shutil
import sys
import tomllib

DEBIAN_PACKAGES = {
    "acstor_agent": "acstor-agent",
    "acstor_checkpoint": "acstor-checkpoint",
    "acstor_cinder": "acstor-cinder",
    "acstor_common": "python3-acstor",
    "acstor_decision": "acstor-decision",
    "acstor_glance": "acstor-glance",
    "acstor_nova": "acstor-nova",
    "acstor_osc": "python3-acstor-osc",
    "acstor_simulator": "acstor-simulator",
}
"""By the name of the Python package."""
FILES = ("bin/{}", "share/man/*/{}.1", "share/bash-completion/*/{}")
"""Files of a command; the last two unless built with nodoc."""
BUILT = pathlib.Path("debian/tmp/usr")
LIBRARIES = "lib/python3/dist-packages"


def select(package: str, names: dict[str, str]) -> dict[str, str]:
    """Return the entry points that lead into a Python package."""
    return {name: at for name, at in names.items() if at.startswith(f"{package}.")}


def metadata(package: str, version: str) -> str:
    """Return the METADATA file; acstor_common has the name of the distribution."""
    name = "acstor" if package == "acstor_common" else package.replace("_", "-")
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nLicense: Apache-2.0\n"


def entry_points(package: str, groups: dict[str, dict[str, str]]) -> str:
    """Return the entry_points.txt file."""
    text = ""
    for group, names in groups.items():
        if own := select(package, names):
            text += f"[{group}]\n" + "".join(f"{name} = {at}\n" for name, at in own.items()) + "\n"
    return text


def move_files(package: str, debian_package: str, version: str, project: dict) -> None:
    """Move a Python package and its commands into the folder of its Debian package."""
    usr = pathlib.Path("debian", debian_package, "usr")
    [built] = BUILT.glob(f"lib/python3*/dist-packages/{package}")
    (usr / LIBRARIES).mkdir(parents=True)
    shutil.move(built, usr / LIBRARIES / package)
    name = "acstor" if package == "acstor_common" else package
    dist_info = usr / LIBRARIES / f"{name}-{version}.dist-info"
    dist_info.mkdir()
    (dist_info / "METADATA").write_text(metadata(package, version))
    (dist_info / "entry_points.txt").write_text(entry_points(package, project["entry-points"]))
    for script in select(package, project["scripts"]):
        for pattern in FILES:
            for built in BUILT.glob(pattern.format(script)):
                target = usr / built.relative_to(BUILT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(built, target)


if __name__ == "__main__":
    with open("pyproject.toml", "rb") as file:
        described = tomllib.load(file)["project"]
    for python_package, of_debian in DEBIAN_PACKAGES.items():
        move_files(python_package, of_debian, sys.argv[1], described)
