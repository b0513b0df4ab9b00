#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: tools/package.sh [--revision N] FOLDER [dpkg-buildpackage options]
#        tools/package.sh --version
#
# Makes a Debian source package of what is committed in FOLDER, and builds it there: all packages
# where the release's own Python libraries are new enough (Debian 13), otherwise the agent alone with
# libraries of its own (Debian 12, Ubuntu 24.04).  apt takes the folder for a repository then.  Needs
# dpkg-dev and the build dependencies, which apt-get build-dep installs, and pip an index, or
# PIP_FIND_LINKS.
#
#   --revision N  of the package, 1 by default: a later one of the same version
#   --version     print the version and end: pip's (pbr's, from the last tag and the commits behind
#                 it) in Debian's spelling
#   -S            (dpkg-buildpackage's) the source package alone
set -euo pipefail
# shellcheck source=tools/lib.sh
source "$(dirname "$0")/lib.sh"

# The version as pip has it, and as dpkg sorts it in the same order: 1.2.1.dev5 is 1.2.1~dev5.
versions() {
    (cd "$ROOT" && python3 -c '
from pbr import packaging, version
of_pip = packaging.get_version("acstor")
print(of_pip, version.SemanticVersion.from_pip_string(of_pip).debian_string())') ||
        fail "the version is not known." "Install git and pbr (apt-get install git python3-pbr), in a clone with a commit."
}

changelog() {
    printf 'acstor (%s-%s) unstable; urgency=medium\n\n' "$1" "$2"
    printf '  * Release notes are in releasenotes/notes of the source.\n\n'
    printf ' -- The acstor developers <acstor@lists.invalid>  %s\n' "$(git -C "$ROOT" log -1 --format=%cD)"
}

revision=1
case ${1:-} in
    --version) versions | cut -d ' ' -f 2 && exit ;;
    --revision) revision=$2 && shift 2 ;;
esac
folder=${1:-}
[[ $folder == [^-]* ]] || fail "there is no folder to build in." "$(usage)"
shift
git -C "$ROOT" rev-parse HEAD >/dev/null 2>&1 ||
    fail "$ROOT is no git checkout." "Packages are made of what is committed: clone the repository."
command -v dpkg-buildpackage >/dev/null || fail "there is no dpkg-buildpackage." "Run: apt-get install dpkg-dev"

versions=$(versions)
read -r of_pip version <<<"$versions"
source=$folder/acstor-$version
mkdir -p "$source"
archive=$folder/acstor_$version.orig.tar.gz
# As an sdist says it: pbr reads it where there is no git.
printf 'Metadata-Version: 2.1\nName: acstor\nVersion: %s\n' "$of_pip" >"$folder/PKG-INFO"
git -C "$ROOT" archive --format=tar.gz --prefix="acstor-$version/" --add-file="$(realpath "$folder/PKG-INFO")" HEAD >"$archive"
rm "$folder/PKG-INFO"
tar --extract --gzip --file "$archive" --directory "$folder"
cp --recursive "$source/packaging/debian" "$source/debian"
changelog "$version" "$revision" >"$source/debian/changelog"
profiles=()
/usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 13))' || profiles=("--build-profiles=pkg.acstor.venv,nodoc")
say "building acstor $version-$revision in $folder"
cd "$source"
dpkg-buildpackage --no-sign "${profiles[@]}" "$@"
cd ..
dpkg-scanpackages . >Packages
