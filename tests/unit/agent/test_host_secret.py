# SPDX-License-Identifier: Apache-2.0
import stat

import pytest

from acstor_agent.process import host_secret
from acstor_common import errors


def test_secret_is_stable_and_readable_only_by_its_owner(tmp_path):
    made = host_secret.load(tmp_path)
    assert len(made) == 32 and made == host_secret.load(tmp_path)
    assert stat.S_IMODE((tmp_path / "host.secret").stat().st_mode) == 0o600


def test_hosts_have_secrets_of_their_own(tmp_path):
    (tmp_path / "other").mkdir()
    assert host_secret.load(tmp_path) != host_secret.load(tmp_path / "other")


@pytest.mark.expect_log(r"host\.secret: 5 bytes are not a valid secret")
def test_damaged_secret_is_replaced_and_logged(tmp_path):
    (tmp_path / "host.secret").write_bytes(b"short")
    made = host_secret.load(tmp_path)
    assert len(made) == 32 and made == host_secret.load(tmp_path)


def test_error_names_missing_folder(tmp_path):
    with pytest.raises(errors.Unusable, match=r"missing/host\.secret: cannot be used"):
        host_secret.load(tmp_path / "missing")
