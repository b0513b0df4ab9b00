# SPDX-License-Identifier: Apache-2.0
"""Fresh Debian installations, and acstor's packages for them.

Both are cached below ``.cache/packages``, since making them takes minutes.  Tests must not change
a root (see :class:`systemd_host.SystemdHost`).

``python -m tests.lab.debian_root RELEASE ARCHITECTURE`` prints the folder of packages for another
architecture.
"""

import os
import pathlib
import shutil
import subprocess
import sys

from acstor_common import errors
from tests.lab import runs

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLACE = ROOT / ".cache/packages"
FRESH = ROOT / "tools/fresh-root.sh"
CLONE = "root/acstor"
PROFILES = {"bookworm": "pkg.acstor.venv,nodoc", "trixie": ""}
"""The build profiles of ``tools/package.sh``, by release."""
BUILD_S = 3600.0
CROSS = {"arm64": "aarch64-linux-gnu"}
"""Prefixes of GNU's tools, by architecture."""

# Argument: build profiles. The second revision has another default in a configuration.
_BUILD = """
export DEBIAN_FRONTEND=noninteractive
cd /root/acstor
apt-get update
apt-get install --yes --no-install-recommends dpkg-dev
(cd packaging && apt-get build-dep --yes --no-install-recommends ${1:+-P"$1"} ./)
rm -rf /root/packages /root/second
bash tools/package.sh /root/packages -b
mkdir /root/second /root/packages/next
cp -a /root/packages/acstor-*/ /root/second
cd /root/second/acstor-*/
sed -i '1s/-1)/-2)/' debian/changelog
printf '\n# New in revision 2.\n' >>etc/acstor/acstor-agent.conf
rm -f debian/files
DEB_BUILD_OPTIONS=nodoc dpkg-buildpackage --no-sign -b -nc --build-profiles="${1:+$1,}nodoc"
mv ../*-2_* /root/packages/next
cd /root/packages/next
dpkg-scanpackages . >Packages
"""
# Arguments: an architecture, and the prefix of GNU's tools for it.
_BUILD_CROSS = """
export DEBIAN_FRONTEND=noninteractive
cd /root/acstor
dpkg --add-architecture "$1"
apt-get update
apt-get install --yes --no-install-recommends dpkg-dev "binutils-$2" {libc6,libgcc-s1}:"$1"
(cd packaging && apt-get build-dep --yes --no-install-recommends -Pnodoc ./)
python=$(basename "$(realpath /usr/bin/python3)")
apt-get install --yes --no-install-recommends "lib$python-minimal:$1"
rm -rf "/root/packages-$1"
# -d: the libraries of the build are this machine's
bash tools/package.sh "/root/packages-$1" -b -d --host-arch "$1" --build-profiles=nodoc
"""


def root(release: str, *packages: str) -> pathlib.Path:
    """Return the root of a release with further packages; make it if missing.

    :raises errors.Unusable: it cannot be made here; has the reason
    """
    name = "-".join((release, *packages))
    folder = PLACE / name
    if not folder.is_dir():
        if shutil.which("debootstrap") is None or os.geteuid():
            raise errors.Unusable(release, "needs root and debootstrap")
        PLACE.mkdir(parents=True, exist_ok=True)
        wanted = ("apt-get", "install", "--yes", "--no-install-recommends", *packages)
        install = "apt-get update && DEBIAN_FRONTEND=noninteractive " + " ".join(wanted)
        said = _run(["bash", FRESH, "--keep", release, "bash", "-c", install])
        [made] = [
            word for word in said.split() if "/fresh-root/" in word and f"/{release}-" in word
        ][-1:]
        pathlib.Path(made).rename(folder)
    return folder


def built(release: str) -> pathlib.Path:
    """Return the folder with the packages of HEAD, in two revisions.

    :raises errors.Unusable: they cannot be built here; has the reason
    """
    return _built(release, "packages", _BUILD, PROFILES[release])


def built_for(release: str, architecture: str) -> pathlib.Path:
    """Return the folder with the packages of HEAD for another architecture, without documents.

    :raises errors.Unusable: they cannot be built here; has the reason
    """
    tools = CROSS[architecture]
    return _built(release, f"packages-{architecture}", _BUILD_CROSS, architecture, tools)


def _built(release: str, name: str, script: str, *arguments: str) -> pathlib.Path:
    folder = root(release, "dpkg-dev")
    commit = runs.tool(["git", "-C", ROOT, "rev-parse", "HEAD"]).strip()
    stamp = folder / f"root/{name}-of"
    if not stamp.is_file() or stamp.read_text() != commit:
        stamp.unlink(missing_ok=True)
        shutil.rmtree(folder / CLONE)
        runs.tool(["git", "clone", "--quiet", ROOT, folder / CLONE])
        _run(["bash", FRESH, "--in", folder, "bash", "-exc", script, "build", *arguments])
        stamp.write_text(commit)
    return folder / "root" / name


def _run(argv: list[str | pathlib.Path]) -> str:
    """Run a command that takes minutes; return its output.

    :raises errors.Unusable: it failed
    """
    try:
        done = runs.run_to_end(argv, BUILD_S)
    except subprocess.TimeoutExpired as e:
        raise errors.Unusable(str(argv[1]), f"did not end in {BUILD_S:.0f} s") from e
    if done.returncode:
        raise errors.Unusable(str(argv[1]), done.stdout[-3000:])
    return done.stdout


if __name__ == "__main__":
    print(built_for(*sys.argv[1:]))
