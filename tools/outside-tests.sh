#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Usage: tools/outside-tests.sh [PART...] [--images N] [--seed N] [--minutes N] [--match REGEX] [--resume]
#
# Parts: samples iotests fuzz inspector readers rest fsx fio overlay tempest rally
#
# Installs what is missing, then compares acstor with QEMU and Glance on the tests of other projects:
# QEMU's sample images and iotests (fetched by apt-get), random and damaged images (10,000; --first N
# --images 1 repeats one), oslo.utils' tests of its inspector, other programs that read qcow2, and
# schemathesis on the REST API, fsx and fio on disks while processes are killed, and Tempest and rally on an
# OpenStack without acstor and with it. The exit status is 0 if acstor nowhere answers otherwise.
set -euo pipefail
# shellcheck source=tools/lib.sh
source "$(dirname "$0")/lib.sh"

case ${1:-} in
    -h | --help) usage && exit ;;
esac
require_root tools/outside-tests.sh
run_module tests.outside "$@"
