# SPDX-License-Identifier: Apache-2.0
"""Start of the capture service: exclusive state directory and option checks."""

import types

import pytest

from acstor_checkpoint import capture_service
from acstor_checkpoint.vault import vault_files
from acstor_common import errors


def started(state_dir):
    own = types.SimpleNamespace(state_dir=str(state_dir))
    return capture_service.run_captures(own, None, "/mirrors", "h1", None, None)


def test_second_daemon_on_a_host_is_refused(tmp_path):
    with vault_files.locked(tmp_path / "state", "it is held"):
        with pytest.raises(errors.Unusable, match="another process takes checkpoints"):
            with started(tmp_path / "state"):
                pass


def test_unusable_state_dir_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(errors.Unusable, match="state_dir"):
        with started(tmp_path / "file" / "state"):
            pass


def test_invalid_holder_name_is_refused():
    with pytest.raises(errors.Unusable, match="checkpoint_holders"):
        capture_service._holders(["storage1", "no host"])
