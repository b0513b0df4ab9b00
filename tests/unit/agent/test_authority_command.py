# SPDX-License-Identifier: Apache-2.0
"""acstor-authority: the files that it writes, their modes, and what it refuses."""

import pathlib
import sys

import pytest

from acstor_agent.cmd import authority
from acstor_common.identity import certificates
from acstor_common.identity import identity_files
from acstor_common.model import ids


@pytest.fixture
def run(monkeypatch):
    def call(*words) -> int:
        monkeypatch.setattr(sys, "argv", ["acstor-authority", *map(str, words)])
        return authority.main()

    return call


def modes(folder: pathlib.Path) -> dict[str, int]:
    paths = [folder, *folder.iterdir()]
    return {path.name: path.stat().st_mode & 0o777 for path in paths}


def test_issued_credentials_match_enrolment_and_are_private(run, tmp_path, capsys):
    assert run("init", tmp_path / "ca") == 0
    for host in ("h1", "h2"):
        assert run("issue", tmp_path / "ca", host, "--out", tmp_path / host, "--days", 7) == 0
    ca = (tmp_path / "h1/ca.pem").read_bytes()
    for host in ("h1", "h2"):
        files = identity_files.IdentityFiles(
            ids.HostId(host), identity_files.files_in(tmp_path / host)
        )
        found = files.current_credentials().certificate
        assert found is not None and found.host == host
        assert certificates.read_host_certificate(found.pem, ca) == found
        assert found.not_after_s - found.not_before_s == 7 * 86400 + certificates.BACKDATE_S
    assert modes(tmp_path / "h1") == {
        "h1": 0o700,
        "ca.pem": 0o600,
        "cert.pem": 0o600,
        "key.pem": 0o600,
    }
    assert modes(tmp_path / "ca") == {"ca": 0o700, "ca.pem": 0o600, "ca.key.pem": 0o600}
    capsys.readouterr()
    assert run("show", tmp_path / "ca") == 0
    assert "CN=acstor" in capsys.readouterr().out


def test_existing_authority_is_never_overwritten(run, tmp_path, capsys):
    assert run("init", tmp_path / "ca") == 0
    before = (tmp_path / "ca/ca.key.pem").read_bytes()
    assert run("init", tmp_path / "ca") == 1
    assert "an authority exists already" in capsys.readouterr().err
    assert (tmp_path / "ca/ca.key.pem").read_bytes() == before


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701, 0o1777])
def test_key_is_not_written_to_an_existing_folder_that_others_can_access(
    run, tmp_path, capsys, mode
):
    shared, own = tmp_path / "shared", tmp_path / "own"
    shared.mkdir()
    shared.chmod(mode)
    assert run("init", shared) == 1
    assert f"{shared}: the folder exists, and other users" in capsys.readouterr().err
    assert list(shared.iterdir()) == [] and shared.stat().st_mode & 0o7777 == mode
    own.mkdir()
    own.chmod(0o2700)
    assert run("init", own) == 0
    assert run("issue", own, "h1", "--out", shared) == 1
    assert own.stat().st_mode & 0o7777 == 0o2700


def test_invalid_arguments_and_files_are_reported(run, tmp_path, capsys):
    assert run("issue", tmp_path / "none", "h1", "--out", tmp_path / "h1") == 1
    assert "No such file" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("issue", tmp_path / "none", "no/host", "--out", tmp_path / "h1")
    assert "not a host id" in capsys.readouterr().err
    assert run("init", tmp_path / "ca") == 0
    (tmp_path / "ca/ca.pem").write_bytes(b"garbage")
    assert run("issue", tmp_path / "ca", "h1", "--out", tmp_path / "h1") == 1
    assert "is rejected" in capsys.readouterr().err
