# SPDX-License-Identifier: Apache-2.0
"""``acstor-authority``: a certificate authority without a decision service.

It creates the files that a host otherwise gets by enrolment. Copy the folder of a host to its
``<state_dir>/identity`` over a trusted connection. Only the owner can read the files.
"""

import argparse
import pathlib
import sys
import time

from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.model import ids
from acstor_common.service import argument_types
from acstor_common.service import console_script
from acstor_common.util import atomic_file

DAY_S = 86400
CA_LIFETIME_DAYS = 3660
MAX_HOST_LIFETIME_DAYS = 3660  # longest validity of a host's certificate


def main() -> int:
    """Run the command line; return an exit status."""
    args = _parser().parse_args()
    try:
        args.handler(args)
    except (errors.Unusable, errors.NotAuthenticated, OSError) as e:
        print(f"acstor-authority: {console_script.error_text(e)}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="acstor-authority", description="Make certificates of hosts without a service."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    init = _command(commands, "init", "make a certificate authority in a new folder", _init)
    init.add_argument("--name", default="acstor", help="common name of its certificate")
    issue = _command(commands, "issue", "make a key and a certificate for a host", _issue)
    issue.add_argument("host", metavar="HOST", type=_host, help="id of the host: its host_id")
    issue.add_argument(
        "--out", metavar="FOLDER", type=pathlib.Path, required=True, help="folder for the files"
    )
    issue.add_argument(
        "--days",
        type=argument_types.number_between(1, MAX_HOST_LIFETIME_DAYS),
        default=366,
        help="days until it expires",
    )
    _command(commands, "show", "show the authority", _show)
    return parser


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    text: str,
    handler: object,
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    command.add_argument("folder", metavar="DIR", type=pathlib.Path, help="folder of the authority")
    command.set_defaults(handler=handler)
    return command


def _host(text: str) -> ids.HostId:
    try:
        return ids.parse_host_id(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from e


def _init(args: argparse.Namespace) -> None:
    folder: pathlib.Path = args.folder
    if (folder / certificates.CA_KEY_FILE).exists():
        raise errors.Unusable(
            str(folder), "an authority exists already", "Use another folder for a new one"
        )
    authority = certificates.Authority.create(args.name, time.time(), CA_LIFETIME_DAYS * DAY_S)
    atomic_file.write_secrets(
        folder,
        {
            certificates.CA_FILE: authority.certificate_pem,
            certificates.CA_KEY_FILE: authority.key_pem,
        },
    )
    _show(args)


def _issue(args: argparse.Namespace) -> None:
    folder: pathlib.Path = args.folder
    bundle = (folder / certificates.CA_FILE).read_bytes()
    authority = certificates.Authority(bundle, (folder / certificates.CA_KEY_FILE).read_bytes())
    key, now_s = certificates.new_key(), time.time()
    request = certificates.request(args.host, key)
    certificate = authority.issue_certificate(request, args.host, now_s, args.days * DAY_S)
    files = {"ca.pem": bundle, "cert.pem": certificate, "key.pem": key}
    atomic_file.write_secrets(args.out, files)
    print(f"{args.out}: {', '.join(files)} of {args.host}, valid for {args.days} days")


def _show(args: argparse.Namespace) -> None:
    for found in certificates.read_ca((args.folder / certificates.CA_FILE).read_bytes()):
        print(certificates.described(found))


if __name__ == "__main__":
    sys.exit(main())
