# SPDX-License-Identifier: Apache-2.0
"""``acstor-authority``: certificates for clouds without a decision service.

It creates the files that enrolment creates otherwise: copy the folder of a host to
``<state_dir>/identity`` there, over a trusted connection. Run it on any host, or offline. The
authority's key stays in its folder; all files are readable by their owner only.
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
CA_DAYS = 3660
MAX_DAYS = 3660


def main() -> int:
    """Run the command line; return an exit status."""
    given = _parser().parse_args()
    try:
        given.do(given)
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
    init.add_argument("--name", default="acstor", help="what its certificate is called")
    issue = _command(commands, "issue", "make a key and a certificate for a host", _issue)
    issue.add_argument("host", metavar="HOST", type=_host, help="id of the host: its host_id")
    issue.add_argument(
        "--out", metavar="FOLDER", type=pathlib.Path, required=True, help="for its files"
    )
    issue.add_argument(
        "--days", type=argument_types.number_between(1, MAX_DAYS), default=366, help="its life"
    )
    _command(commands, "show", "show the authority", _show)
    return parser


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    text: str,
    do: object,
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    command.add_argument("folder", metavar="DIR", type=pathlib.Path, help="of the authority")
    command.set_defaults(do=do)
    return command


def _host(text: str) -> ids.HostId:
    try:
        return ids.parse_host_id(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from e


def _init(given: argparse.Namespace) -> None:
    folder: pathlib.Path = given.folder
    if (folder / certificates.CA_KEY_FILE).exists():
        raise errors.Unusable(
            str(folder), "there is an authority already", "Take another folder for a new one"
        )
    made = certificates.Authority.create(given.name, time.time(), CA_DAYS * DAY_S)
    atomic_file.write_secrets(
        folder, {certificates.CA_FILE: made.certificate_pem, certificates.CA_KEY_FILE: made.key_pem}
    )
    _show(given)


def _issue(given: argparse.Namespace) -> None:
    folder: pathlib.Path = given.folder
    bundle = (folder / certificates.CA_FILE).read_bytes()
    authority = certificates.Authority(bundle, (folder / certificates.CA_KEY_FILE).read_bytes())
    key, now_s = certificates.new_key(), time.time()
    request = certificates.request(given.host, key)
    certificate = authority.issue_certificate(request, given.host, now_s, given.days * DAY_S)
    files = {"ca.pem": bundle, "cert.pem": certificate, "key.pem": key}
    atomic_file.write_secrets(given.out, files)
    print(f"{given.out}: {', '.join(files)} of {given.host}, valid for {given.days} days")


def _show(given: argparse.Namespace) -> None:
    for found in certificates.read_ca((given.folder / certificates.CA_FILE).read_bytes()):
        print(certificates.described(found))


if __name__ == "__main__":
    sys.exit(main())
