# SPDX-License-Identifier: Apache-2.0
"""Interface of openstackclient's plug-ins: name, options, client."""

import argparse
from typing import Any

from osc_lib import exceptions

from acstor_osc import api_versions
from acstor_osc import client

API_NAME = "acstor"
API_VERSION_OPTION = "os_acstor_api_version"
DEFAULT_API_VERSION = api_versions.MAJOR
API_VERSIONS = (api_versions.MAJOR, *api_versions.KNOWN)


def make_client(instance: Any) -> client.Client:
    """Return the client of the service in Keystone's catalog."""
    asked = api_versions.parse(instance._api_version[API_NAME])  # only this attribute has it
    return client.Client(instance.session, instance.region_name, instance.interface, asked)


def check_api_version(version: str) -> bool:
    """Return True for a valid version from the option or clouds.yaml, or raise CommandError."""
    if (
        version == api_versions.NEWEST
    ):  # openstackclient would look for a command group of this name
        raise exceptions.CommandError(
            f"acstor_api_version: set {api_versions.MAJOR} in clouds.yaml, which means the "
            "newest; "
            f"{api_versions.NEWEST} is for {api_versions.OPTION} alone"
        )
    api_versions.parse(version)
    return True


def build_option_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the option for the version of the API."""
    parser.add_argument(
        api_versions.OPTION,
        type=_version,
        metavar="<version>",
        default=DEFAULT_API_VERSION,
        help=f"version of the acstor API, {api_versions.KNOWN[0]} to {api_versions.KNOWN[-1]} or "
        f"{api_versions.NEWEST} (default: the newest that client and service support)",
    )
    return parser


def _version(text: str) -> str:
    try:
        return api_versions.parse(text)
    except exceptions.CommandError as e:
        raise argparse.ArgumentTypeError(str(e)) from e
