# SPDX-License-Identifier: Apache-2.0
import os
import stat

import pytest
from cryptography.x509 import oid

from acstor_common.identity import identity_files
from acstor_common.identity import signing
from acstor_common.model import ids
from tests.fakes import cloud_keys
from tests.fakes import manual_clock

H1 = ids.HostId("h1")


@pytest.fixture
def keys():
    return cloud_keys.CloudKeys()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "identity"


@pytest.fixture
def clock():
    return manual_clock.ManualClock()


@pytest.fixture
def files(folder, clock):
    return identity_files.IdentityFiles(H1, identity_files.files_in(folder), clock)


def test_host_without_identity_files_has_no_credentials_or_signers(files):
    assert files.current_credentials() == identity_files.Identity()
    assert files.signer_keys() == ()


@pytest.mark.expect_log(r"identity/ca.pem: .*usage of CN=own lacks serverAuth; it is not used")
def test_authority_without_server_usage_is_refused_with_its_file(files, folder, keys):
    own, _ = cloud_keys.own_authority(oid.ExtendedKeyUsageOID.CLIENT_AUTH)
    identity_files.write(folder, keys.host("h1")._replace(ca=own))
    assert files.current_credentials().certificate is None


def test_identity_files_are_read_back_and_private(files, folder, keys):
    written = keys.host("h1")
    identity_files.write(folder, written)
    found = files.current_credentials()
    assert (found.certificate.host, found.key, found.ca) == ("h1", written.key, written.ca)
    assert len(files.signer_keys()) == 1
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert {path.name for path in folder.iterdir()} == {
        "ca.pem",
        "cert.pem",
        "key.pem",
        "signers.pem",
    }


def test_new_identity_is_seen_after_the_check_interval_or_invalidate(files, folder, keys, clock):
    assert files.current_credentials().certificate is None
    identity_files.write(folder, keys.host("h1"))
    assert files.current_credentials().certificate is None
    clock.now_s += identity_files.CHECK_INTERVAL_S
    first = files.current_credentials()
    identity_files.write(folder, keys.host("h1"))
    assert files.current_credentials() is first
    files.invalidate()
    assert files.current_credentials().key not in (b"", first.key)


def test_previous_identity_stays_readable_and_older_ones_are_removed(folder, keys):
    identity_files.write(folder, keys.host("h1"))
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    first = (folder / "key.pem").read_bytes()
    for _ in range(3):
        before = os.path.realpath(folder)
        identity_files.write(folder, keys.host("h1"))
        sets = {str(p) for p in folder.parent.glob(".identity-*")}
        assert sets == {before, os.path.realpath(folder)}
    os.close(handle)
    assert (folder / "key.pem").read_bytes() != first


def test_manually_made_directory_is_moved_aside(folder, keys):
    folder.mkdir()
    (folder / "ca.pem").write_bytes(b"by hand")
    identity_files.write(folder, keys.host("h1"))
    assert folder.is_symlink()
    assert (folder.parent / "identity.by-hand" / "ca.pem").read_bytes() == b"by hand"


def test_failed_write_keeps_the_previous_identity(folder, keys, monkeypatch):
    identity_files.write(folder, keys.host("h1"))
    before = (os.path.realpath(folder), (folder / "key.pem").read_bytes())

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(identity_files, "_link", fail)
    with pytest.raises(OSError, match="No space"):
        identity_files.write(folder, keys.host("h1"))
    assert (os.path.realpath(folder), (folder / "key.pem").read_bytes()) == before
    assert len(list(folder.parent.glob(".identity-*"))) == 1


@pytest.mark.expect_log("the certificate of h2 is rejected: this host is h1; it is not used")
def test_certificate_of_another_host_is_not_used(files, folder, keys):
    identity_files.write(folder, keys.host("h2"))
    assert files.current_credentials().certificate is None
    assert files.current_credentials().key == b""
    assert len(files.signer_keys()) == 1


@pytest.mark.expect_log("the key beside it does not match it")
def test_certificate_with_another_key_is_not_used(files, folder, keys):
    identity_files.write(folder, keys.host("h1")._replace(key=signing.new_key()))
    assert files.current_credentials().certificate is None


@pytest.mark.expect_log("none of the trusted authorities issued it")
def test_certificate_of_another_cloud_is_not_used(files, folder, keys):
    other = cloud_keys.CloudKeys().authority.certificate_pem
    identity_files.write(folder, keys.host("h1")._replace(ca=other))
    assert files.current_credentials().certificate is None


@pytest.mark.expect_log("signers.pem.*it is not used")
@pytest.mark.parametrize("signers", [b"rubbish", b"-----BEGIN PUBLIC KEY-----\nAAAA\n"])
def test_invalid_signers_are_logged_once(files, folder, keys, clock, watched_log, signers):
    for _ in range(3):
        identity_files.write(folder, keys.host("h1")._replace(signers=signers))
        clock.now_s += identity_files.CHECK_INTERVAL_S
        assert files.signer_keys() == ()
        assert files.current_credentials().certificate is not None
    assert len(watched_log.messages) == 1


def test_manually_placed_files_need_no_signers(tmp_path, keys):
    made = keys.host("h1")
    for name, data in (("ca", made.ca), ("cert", made.certificate), ("key", made.key)):
        (tmp_path / f"{name}.pem").write_bytes(data)
    files = identity_files.IdentityFiles(H1, identity_files.files_in(tmp_path))
    assert files.current_credentials().certificate.host == "h1"
    assert files.signer_keys() == ()


@pytest.mark.expect_log("signers.pem.*it is not used")
def test_file_is_read_again_even_with_the_same_size_and_time(files, folder, keys, clock):
    identity_files.write(folder, keys.host("h1")._replace(signers=b"-" * len(keys.signers)))
    assert files.signer_keys() == ()
    path = files.files.signers
    before = path.stat()
    path.write_bytes(keys.signers)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    clock.now_s += identity_files.CHECK_INTERVAL_S
    assert len(files.signer_keys()) == 1
