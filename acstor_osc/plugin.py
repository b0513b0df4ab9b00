# SPDX-License-Identifier: Apache-2.0
"""What openstackclient wants to know of a plug-in: its name, its options, its client."""

import argparse
from typing import Any

from acstor_osc import client

API_NAME = "acstor"
API_VERSION_OPTION = "os_acstor_api_version"
DEFAULT_API_VERSION = "1"
API_VERSIONS = ("1",)


def make_client(instance: Any) -> client.Client:
    """Return what the commands ask; the service is found in Keystone's catalog."""
    return client.Client(instance.session, instance.region_name, instance.interface)


def build_option_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the option that chooses the version of the API."""
    parser.add_argument(
        "--os-acstor-api-version",
        metavar="<version>",
        default=DEFAULT_API_VERSION,
        choices=API_VERSIONS,
        help="version of the acstor API (default: 1)",
    )
    return parser
