# SPDX-License-Identifier: Apache-2.0
"""The command acstor-decision-manage, as an operator runs it on the service's host."""

import functools
import os
import pathlib
import re
import sqlite3

import pytest

from acstor_common.identity import certificates
from acstor_common.identity import signing
from acstor_decision.cmd import manage as command
from tests.fakes import forked_command


@pytest.fixture
def manage(tmp_path):
    config = tmp_path / "decision.conf"
    config.write_text(f"[database]\nconnection = sqlite:///{tmp_path}/decision.sqlite\n")
    run = functools.partial(forked_command.run, command.main, "--config-file", config)
    assert run("db-sync").returncode == 0
    return run


@pytest.mark.parametrize("before", [None, 0o644])
def test_database_with_private_keys_is_readable_only_by_its_owner(tmp_path, before):
    file, config = tmp_path / "new.sqlite", tmp_path / "decision.conf"
    config.write_text(f"[database]\nconnection = sqlite:///{file}\n")
    if before is not None:
        file.touch(before)
    former = os.umask(0o022)
    try:
        assert forked_command.run(command.main, "--config-file", config, "db-sync").returncode == 0
    finally:
        os.umask(former)
    assert file.stat().st_mode & 0o777 == 0o600


def test_authority_issues_shows_and_renews_without_a_service(manage, tmp_path: pathlib.Path):
    out = tmp_path / "h1"
    assert "valid until" in manage("authority", "issue", "h1", "--out", out).stdout
    assert {path.name: path.stat().st_mode & 0o777 for path in out.iterdir()} == dict.fromkeys(
        ("ca.pem", "cert.pem", "key.pem", "signers.pem"), 0o600
    )
    ca, signers = ((out / name).read_bytes() for name in ("ca.pem", "signers.pem"))
    issued = certificates.read_host_certificate((out / "cert.pem").read_bytes(), ca)
    assert issued.host == "h1" and len(signing.read_public_keys(signers)) == 1
    for renewal, kind in (("renew-ca", "ca"), ("renew-signer", "signer")):
        assert f"{kind} 2 signs from" in manage("authority", renewal).stdout
    shown = manage("authority", "show").stdout
    assert re.search(r"ca 1: signs from .* on, until 20\d\d-", shown)
    assert re.search(r"signer 2: signs from .* on, until trusted", shown)
    pem = manage("authority", "show", "--pem").stdout
    assert pem.count("BEGIN CERTIFICATE") == pem.count("BEGIN PUBLIC KEY") == 2
    assert "PRIVATE" not in pem
    assert manage("authority", "renew-ca", "--stolen").returncode == 0
    assert manage("authority", "show", "--pem").stdout.count("BEGIN CERTIFICATE") == 1


def test_directory_that_others_may_enter_gets_no_key(manage, tmp_path: pathlib.Path):
    first, out = tmp_path / "first", tmp_path / "shared"
    assert manage("authority", "issue", "h1", "--out", first).returncode == 0
    out.mkdir()
    out.chmod(0o750)
    refused = manage("authority", "issue", "h1", "--out", out)
    assert (
        refused.returncode == 1 and f"{out}: the folder exists, and other users" in refused.stderr
    )
    assert list(out.iterdir()) == [] and out.stat().st_mode & 0o777 == 0o750
    again = manage("authority", "issue", "h1", "--out", first)
    assert again.returncode == 0, "a folder of its owner's alone is taken again"


def test_invalid_arguments_are_refused_with_a_reason(manage, tmp_path):
    refused = manage("authority", "issue", "no/host", "--out", tmp_path / "x")
    assert refused.returncode == 1 and "not a host id" in refused.stderr
    manage("authority", "revoke", "h1")
    assert manage("authority", "allow", "h1").returncode == 0
    named = manage("authority", "allow", "h1", "--fingerprint", "AB" * 32, "--user", "u")
    assert named.returncode == 0
    refused = manage("authority", "allow", "h1", "--fingerprint", "abc")
    assert refused.returncode == 1 and "--fingerprint: 'abc' is not a SHA-256" in refused.stderr
    assert manage("authority", "forget", "h1").returncode == 0
    refused = manage("authority", "forget", "h1")
    assert refused.returncode == 1 and "host h1: it is not known" in refused.stderr


@pytest.mark.parametrize(
    ("connection", "words"),
    [
        ("sqlite:////nowhere/at/all.sqlite", "unable to open database file"),
        ("mysql+pymysql://acstor:secret@127.0.0.1:1/acstor", "Connection refused"),
        ("mysql+aiomysql://acstor:secret@127.0.0.1:1/acstor", "which is not installed"),
        ("secret", "not a database URL"),
    ],
)
@pytest.mark.parametrize("asked", [("db-sync",), ("history",), ("authority", "show")])
def test_unusable_database_is_reported_in_one_line(tmp_path, connection, words, asked):
    config = tmp_path / "decision.conf"
    config.write_text(f"[database]\nconnection = {connection}\n")
    done = forked_command.run(command.main, "--config-file", config, *asked)
    [line] = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert line.startswith("acstor-decision-manage: [database] connection: ") and words in line
    assert "secret" not in line


def test_other_schema_version_is_reported_with_the_remedy(manage, tmp_path: pathlib.Path):
    file = tmp_path / "decision.sqlite"
    with sqlite3.connect(file) as other:
        other.execute("UPDATE alembic_version SET version_num = '0099'")
    done = manage("history")
    assert done.returncode == 1 and "Run acstor-decision-manage db-sync" in done.stderr
    done = manage("db-sync")
    assert done.returncode == 1 and "of a later version" in done.stderr
    assert "Traceback" not in done.stderr
    file.unlink()
    sqlite3.connect(file).close()  # an empty database
    assert "has not the tables of this version" in manage("drain", "h1").stderr
