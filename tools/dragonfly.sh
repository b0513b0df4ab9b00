#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: tools/dragonfly.sh
#
# Builds Dragonfly for the benchmark PEERS, in .cache/dragonfly: the daemon from its Rust package, and
# the scheduler from its repository (DRAGONFLY_REPOSITORY: another URL, or a folder). Needs cargo and go;
# takes half an hour on two processors.
set -euo pipefail
# shellcheck source=tools/lib.sh
source "$(dirname "$0")/lib.sh"

CLIENT=1.5.10 SCHEDULER=v2.5.1
REPOSITORY=${DRAGONFLY_REPOSITORY:-https://github.com/dragonflyoss/dragonfly}
TO=$ROOT/.cache/dragonfly LOG=dragonfly.log

case ${1:-} in
    -h | --help) usage && exit ;;
esac
require_root tools/dragonfly.sh
for program in cargo go git; do
    command -v "$program" >/dev/null ||
        fail "$program is not installed." "Install it, and run tools/dragonfly.sh again."
done
mkdir -p "$TO" "$LOGS"
logged $LOG "Is the network reachable?" apt-get install --yes \
    build-essential cmake libclang-dev libprotobuf-dev protobuf-compiler

say "building its daemon $CLIENT; follow .cache/logs/$LOG"
CARGO_TARGET_DIR=$TO/target CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
    logged $LOG "Run tools/dragonfly.sh again: it continues." \
    cargo install dragonfly-client --version $CLIENT --locked --root "$TO" --bin dfdaemon --bin dfget

say "building its scheduler $SCHEDULER"
rm -rf "$TO/source"
logged $LOG "Does DRAGONFLY_REPOSITORY have $SCHEDULER?" \
    git clone --quiet --depth 1 --branch $SCHEDULER "$REPOSITORY" "$TO/source"
logged $LOG "Run tools/dragonfly.sh again." go build -C "$TO/source" -o "$TO/bin/scheduler" ./cmd/scheduler
rm -rf "$TO/target" "$TO/source"
say "built; tools/bench.sh PEERS measures it from now on"
