# SPDX-License-Identifier: Apache-2.0
"""``acstor-decision-manage``: administration on the service's own host.

It works on the database alone, so it needs neither the service nor the broker.
"""

import argparse
import logging
import pathlib
import sys
import time

from oslo_config import cfg

from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.model import ids
from acstor_common.service import argument_types
from acstor_common.service import console_script
from acstor_common.util import atomic_file
from acstor_common.util import printable_text
from acstor_decision import conf as decision_conf
from acstor_decision.core import enrolment_rules
from acstor_decision.db import connection_url
from acstor_decision.db import database
from acstor_decision.db import models
from acstor_decision.identity import certificate_authority

HISTORY_LIMIT = 10_000
STATEMENT_S = 3600  # timeout of a statement in seconds; a migration may change a large table
BY_HAND = ""  # user of a host that was enrolled here; its next renewal binds it to a user


def main() -> int:
    """Run the command line; return an exit status."""
    arguments = _parser().parse_args()
    files = ["--config-file", arguments.config_file] if arguments.config_file else []
    try:
        conf = decision_conf.load(files)
        _do(conf, arguments)
    except (
        errors.Unusable,
        errors.NotAuthenticated,
        enrolment_rules.EnrolmentRefused,
        cfg.Error,
        OSError,
    ) as e:
        print(f"acstor-decision-manage: {console_script.error_text(e)}", file=sys.stderr)
        return 1
    return 0


def _do(conf: cfg.ConfigOpts, arguments: argparse.Namespace) -> None:
    store = database.Database(conf, STATEMENT_S)
    arguments.conf = conf
    if not arguments.makes_tables:
        logging.getLogger("alembic").setLevel(logging.WARNING)  # alembic logs each inspection
    try:
        if not (arguments.makes_tables or store.is_current()):
            raise errors.Unusable(
                connection_url.OPTION,
                f"the schema of {connection_url.redacted_url(conf.database.connection)} does not "
                "match this version",
                "Run acstor-decision-manage db-sync",
            )
        arguments.do(store, arguments)
    except database.DatabaseError as e:
        raise e.as_unusable() from e


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="acstor-decision-manage", description=argument_types.help_text(__doc__)
    )
    parser.add_argument("--config-file", help="the service's configuration")
    parser.set_defaults(makes_tables=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    sync = commands.add_parser("db-sync", help="create or upgrade the tables of the database")
    sync.set_defaults(do=lambda store, _: store.upgrade(), makes_tables=True)
    for name, is_drained, text in (
        ("drain", True, "move all v-nodes away from a host"),
        ("enable", False, "give v-nodes to a drained host again"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("host", metavar="HOST", help="id of the host")
        command.set_defaults(do=_set_drained, is_drained=is_drained)
    _add_authority(
        commands.add_parser("authority", help="manage the certificate authority of the cloud")
    )
    history = commands.add_parser("history", help="show the published v-node tables")
    history.add_argument(
        "--limit",
        type=argument_types.number_between(1, HISTORY_LIMIT),
        default=20,
        metavar="N",
        help="largest number of tables, the newest first (default: 20)",
    )
    history.set_defaults(do=_show_history)
    return parser


def _add_authority(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    show = commands.add_parser("show", help="show its keys, and the end of trust in each")
    show.add_argument(
        "--pem", action="store_true", help="show certificates and public keys instead"
    )
    show.set_defaults(do=_show_authority)
    for name, kind, text in (
        ("renew-ca", certificate_authority.CA, "create a new key for certificates"),
        (
            "renew-signer",
            certificate_authority.SIGNER,
            "create a new key for v-node tables and tasks",
        ),
    ):
        renew = commands.add_parser(name, help=text)
        renew.add_argument(
            "--stolen",
            action="store_true",
            help="use the new key at once and revoke the old ones; hosts without it are "
            "cut off until they enrol again",
        )
        renew.set_defaults(do=_renew, kind=kind)
    _add_enrolment(commands)


def _add_enrolment(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> None:
    allow, _, _, issue = (
        _with_host(commands.add_parser(name, help=text), do)
        for name, text, do in (
            ("allow", "allow a host to enrol once, for the first time or again", _allow),
            ("revoke", "revoke the certificates of a host", _revoke),
            ("forget", "delete the record of a decommissioned host", _forget),
            ("issue", "enrol a host that cannot reach the REST API", _issue),
        )
    )
    default_user = "default: that of the waiting request of this host, or of its next one"
    allow.add_argument("--fingerprint", help=f"SHA-256 of the allowed key, in hex ({default_user})")
    allow.add_argument(
        "--user", default="", help=f"id of the allowed Keystone user ({default_user})"
    )
    issue.add_argument(
        "--out",
        metavar="FOLDER",
        type=pathlib.Path,
        required=True,
        help="private folder for the key and the certificate of the host",
    )


def _with_host(command: argparse.ArgumentParser, do: object) -> argparse.ArgumentParser:
    command.add_argument("host", metavar="HOST", help="id of the host")
    command.set_defaults(do=do)
    return command


def _authority(
    store: database.Database, arguments: argparse.Namespace
) -> certificate_authority.CertificateAuthority:
    return certificate_authority.CertificateAuthority(arguments.conf.acstor_decision, store)


def _show_authority(store: database.Database, arguments: argparse.Namespace) -> None:
    authority = _authority(store, arguments)
    if arguments.pem:
        trust = authority.load_trust_state()
        sys.stdout.write(trust.ca.decode() + trust.signers.decode())
        return
    for found in certificates.read_ca(authority.authority_chain()):
        print(f"current or former issuer of certificates: {certificates.described(found)}")
    for kind in (certificate_authority.CA, certificate_authority.SIGNER):
        for row in authority.list_keys(kind):
            print(f"{kind} {row.number}: signs from {_day(row.signs_from_s)} on, {_until(row)}")


def _until(row: models.AuthorityKey) -> str:
    if row.trusted_until_s == certificate_authority.STOLEN_S:
        return "stolen: not trusted"
    return f"until {'trusted' if row.trusted_until_s is None else _day(row.trusted_until_s)}"


def _day(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at_s))


def _renew(store: database.Database, arguments: argparse.Namespace) -> None:
    if arguments.kind == certificate_authority.CA and arguments.conf.acstor_decision.ca_dir:
        raise errors.Unusable(
            "[acstor_decision] ca_dir",
            "the authority is your own, so acstor does not renew it",
            "Renew it, and append the certificate of the previous one to ca.pem",
        )
    row = _authority(store, arguments).renew_key(arguments.kind, at_once=arguments.stolen)
    print(f"{arguments.kind} {row.number} signs from {_day(row.signs_from_s)} on")


def _host(arguments: argparse.Namespace) -> ids.HostId:
    try:
        return ids.parse_host_id(arguments.host)
    except ValueError as e:
        raise errors.Unusable("HOST", str(e)) from e


def _allow(store: database.Database, arguments: argparse.Namespace) -> None:
    try:
        fingerprint = ids.parse_fingerprint(arguments.fingerprint or "")
    except ValueError as e:
        raise errors.Unusable("--fingerprint", str(e)) from e
    _authority(store, arguments).allow_host(_host(arguments), fingerprint, arguments.user)


def _revoke(store: database.Database, arguments: argparse.Namespace) -> None:
    _authority(store, arguments).revoke_host(_host(arguments))


def _forget(store: database.Database, arguments: argparse.Namespace) -> None:
    if not _authority(store, arguments).delete_host(_host(arguments)):
        raise errors.Unusable(f"host {arguments.host}", "it is not known")


def _issue(store: database.Database, arguments: argparse.Namespace) -> None:
    host = _host(arguments)
    atomic_file.make_private(arguments.out)  # before existing certificates are revoked
    authority, key = _authority(store, arguments), certificates.new_key()
    request = certificates.request(host, key)
    authority.allow_host(host, certificates.fingerprint(certificates.request_key(request)))
    issued = authority.enrol_host(host, BY_HAND, "", request, "")
    files = {
        "ca.pem": issued.ca,
        "cert.pem": issued.certificate,
        "key.pem": key,
        "signers.pem": issued.signers,
    }
    atomic_file.write_secrets(arguments.out, files)
    print(f"{arguments.out}: {', '.join(files)} of {host}, valid until {_day(issued.not_after_s)}")


def _set_drained(store: database.Database, arguments: argparse.Namespace) -> None:
    if not store.set_drained(arguments.host, arguments.is_drained):
        raise errors.Unusable(f"host {arguments.host}", "it has never sent a sample")


def _show_history(store: database.Database, arguments: argparse.Namespace) -> None:
    for ring in store.list_rings(limit=arguments.limit):
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(ring.published_s))
        print(
            f"{when}  epoch {ring.epoch}  {ring.reason:9}  {ring.moved} of {ring.vnodes} v-nodes "
            f"moved  {ring.hosts} hosts  {printable_text.text(' '.join(ring.overloaded))}".rstrip()
        )


if __name__ == "__main__":
    sys.exit(main())
