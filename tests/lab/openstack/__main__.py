# SPDX-License-Identifier: Apache-2.0
"""The command behind ``tools/openstack-lab.sh``: runs a cloud until it is stopped."""

import argparse
import pathlib
import shutil
import sys

from acstor_common import errors
from tests.lab import runs
from tests.lab.openstack import accounts
from tests.lab.openstack import acstor
from tests.lab.openstack import api
from tests.lab.openstack import cloud
from tests.lab.openstack import comparison
from tests.lab.openstack import installed
from tests.lab.openstack import prepared
from tests.lab.openstack import tempest
from tests.lab.openstack import tempest_cloud
from tests.lab.openstack import tempest_results

DEFAULT_FOLDER = runs.CHECKOUT / ".openstack-lab"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/openstack-lab.sh", description="An OpenStack on this machine, for tests."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in {
        "install": "install the released services and prepare their databases",
        "up": "start the services and wait until they are ready",
        "status": "show which services run, and where",
        "down": "stop the services; their data stays for the next up",
    }.items():
        command = commands.add_parser(name, help=words)
        command.add_argument(
            "--state",
            type=pathlib.Path,
            default=DEFAULT_FOLDER,
            help="folder that holds everything of this cloud (default: %(default)s)",
        )
    _add_tempest(commands.add_parser("tempest", help="run Tempest's tests on a new cloud"))
    commands.choices["up"].add_argument(
        "--images-only", action="store_true", help="leave out Nova: only Keystone and Glance"
    )
    commands.choices["up"].add_argument(
        "--acstor", action="store_true", help="with acstor on all hosts, and an image that boots"
    )
    commands.choices["down"].add_argument(
        "--wipe", action="store_true", help="remove the state folder afterwards"
    )
    return parser.parse_args()


def _add_tempest(command: argparse.ArgumentParser) -> None:
    command.add_argument("way", choices=[*tempest_cloud.WAYS, "compare"])
    command.add_argument(
        "--regex", default=tempest.REGEX, help="names of the tests to run (default: %(default)s)"
    )
    command.add_argument("--concurrency", type=int, default=1, help="tests at once (default: 1)")
    command.add_argument(
        "--results",
        type=pathlib.Path,
        default=tempest.RESULTS,
        help="folder of tempest-stock.json and tempest-acstor.json (default: %(default)s)",
    )


def _tempest(arguments: argparse.Namespace) -> int:
    """Run the tests, or compare two runs; return the exit status."""
    paths = {way: arguments.results / f"tempest-{way}.json" for way in tempest_cloud.WAYS}
    if (way := arguments.way) == "compare":
        stock, acstor = (tempest_results.read(path) for path in paths.values())
        compared = comparison.compare(stock, acstor, comparison.read_known())
        print(comparison.text(stock, acstor, compared))
        return 0 if compared.is_explained else 1
    ids = tempest.list_tests(arguments.regex)
    results = tempest.run(way, ids, tempest.Plan(arguments.concurrency))
    tempest_results.write(results, paths[way])
    print(tempest_results.table(results))
    print(f"acstor: {paths[way]}")
    return 0


def _show(lab: cloud.Cloud) -> None:
    for service in (*lab.services(), *acstor.Acstor(lab).services()):
        port = getattr(service, "port", "-")
        print(f"{service.name:<22} {service.pid or 'stopped':<9} {port!s:<6} {service.log_path}")


def _up(lab: cloud.Cloud, arguments: argparse.Namespace) -> None:
    installed.install()
    if arguments.acstor:
        acstor.Acstor(lab).start()
    elif arguments.images_only:
        lab.start_image_services()
    else:
        lab.start_compute_services()
    _show(lab)
    user = accounts.USERS["admin"]
    print(
        f"\nexport OS_AUTH_URL={lab.keystone.auth_url} OS_USERNAME=admin OS_PASSWORD={api.PASSWORD}"
        f" OS_PROJECT_NAME={user.project} OS_USER_DOMAIN_ID=default OS_PROJECT_DOMAIN_ID=default"
        f" OS_IDENTITY_API_VERSION=3 OS_REGION_NAME={api.REGION} OS_COMPUTE_API_VERSION=2.37"
    )


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "tempest":
        return _tempest(arguments)
    lab = cloud.Cloud(arguments.state.resolve())
    match arguments.command:
        case "install":
            installed.install_tempest()
            installed.install_cinder()
            prepared.ensure()
        case "up":
            _up(lab, arguments)
        case "status":
            _show(lab)
        case "down":
            acstor.Acstor(lab).stop()
            lab.stop()
            if arguments.wipe:
                shutil.rmtree(lab.folder, ignore_errors=True)
    return 0


try:
    sys.exit(_run(_arguments()))
except errors.Unusable as failure:
    sys.exit(f"acstor: error: {failure}")
