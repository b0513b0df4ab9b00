# SPDX-License-Identifier: Apache-2.0
"""One daemon alone takes checkpoints of a host."""

import types

import pytest

from acstor_checkpoint import capture_service
from acstor_checkpoint.vault import vault_files
from acstor_common import errors


def started(state_dir):
    own = types.SimpleNamespace(state_dir=str(state_dir))
    return capture_service.run_captures(own, None, "/mirrors", "h1", None, None)


def test_two_daemons_do_not_take_checkpoints_of_one_host(tmp_path):
    with vault_files.locked(tmp_path / "state", "it is held"):
        with pytest.raises(errors.Unusable, match="another process takes checkpoints"):
            with started(tmp_path / "state"):
                pass


def test_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(errors.Unusable, match="state_dir"):
        with started(tmp_path / "file" / "state"):
            pass


def test_holder_that_can_be_no_host_is_refused():
    with pytest.raises(errors.Unusable, match="checkpoint_holders"):
        capture_service._holders(["storage1", "no host"])
