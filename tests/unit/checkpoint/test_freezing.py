# SPDX-License-Identifier: Apache-2.0
"""Guest file systems are thawed after a snapshot begins, whatever fails."""

import contextlib

import libvirt
import pytest

from acstor_checkpoint.capture.domains import domain_xml
from acstor_checkpoint.capture.domains import libvirt_domain
from acstor_common import errors
from acstor_common.model import ids

INSTANCE = ids.ImageId("8d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
MIB = 1 << 20
BLOCK = libvirt.VIR_DOMAIN_AGENT_RESPONSE_TIMEOUT_BLOCK
DISK = domain_xml.RootDisk("vda", "/disk", INSTANCE)


class Domain:
    """A libvirt domain that records calls and fails at given ones, with an error code."""

    timeout_s = BLOCK

    def __init__(self, *fails, code=None):
        self.fails, self.code, self.reported = fails, code, []

    def __getattr__(self, name):
        def do(*words):
            self.reported.append(name)
            if name in self.fails:
                error = libvirt.libvirtError(name)
                error.err = self.code and (self.code, 0, name)
                raise error
            if name == "agentSetResponseTimeout":
                [self.timeout_s] = words
            said = {"listAllCheckpoints": [], "backupGetXMLDesc": "<domainbackup/>"}
            return {**said, "ID": 7, "name": "instance-7", "blockInfo": [MIB] * 3}.get(name)

        return do


@pytest.fixture
def domain_of(tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "instance-7.pid").write_text("7")

    def made(fake, *, has_agent=True):
        server = domain_xml.Server(INSTANCE, "p", DISK, {}, has_agent)
        return libvirt_domain.Domain(fake, server, str(run_dir))

    return made


def test_backup_begins_while_file_systems_are_frozen(domain_of, tmp_path):
    fake = Domain()
    with domain_of(fake).export_snapshot("acstor-1", "", tmp_path) as moment:
        assert moment.is_frozen
        assert [name for name in fake.reported if name.startswith(("fs", "backupB"))] == [
            "fsFreeze",
            "backupBegin",
            "fsThaw",
        ]


@pytest.mark.parametrize("is_loud", [False, True])
def test_file_systems_are_thawed_when_the_backup_fails(domain_of, tmp_path, is_loud):
    fake = Domain("backupBegin", *(["listAllCheckpoints"] if is_loud else []))
    with (
        pytest.raises(errors.Unusable),
        domain_of(fake).export_snapshot("acstor-1", "", tmp_path),
    ):
        pass
    assert fake.reported[-2:] == ["fsThaw", "agentSetResponseTimeout"]


@pytest.mark.parametrize("code", [None, libvirt.VIR_ERR_AGENT_UNRESPONSIVE])
@pytest.mark.parametrize("fault", ["fsFreeze", "agentSetResponseTimeout"])
def test_failed_freeze_still_gives_a_checkpoint(domain_of, tmp_path, fault, code):
    fake = Domain(fault, code=code)
    with domain_of(fake).export_snapshot("acstor-1", "", tmp_path) as moment:
        assert not moment.is_frozen
    assert fake.reported.index("fsThaw") < fake.reported.index("backupBegin")


@pytest.mark.parametrize(
    "code",
    [
        libvirt.VIR_ERR_INTERNAL_ERROR,  # the agent refuses, as while Nova has frozen the guest
        libvirt.VIR_ERR_OPERATION_INVALID,  # the guest is paused
    ],
)
def test_guest_that_refuses_to_freeze_is_not_thawed(domain_of, tmp_path, code):
    fake = Domain("fsFreeze", "fsThaw", code=code)
    with domain_of(fake).export_snapshot("acstor-1", "", tmp_path) as moment:
        assert not moment.is_frozen
    assert "fsThaw" not in fake.reported


@pytest.mark.parametrize("fault", ["", "fsFreeze", "backupBegin"])
def test_timeout_of_the_guest_agent_is_reset_after_the_freeze(domain_of, tmp_path, fault):
    fake = Domain(fault)
    with (
        contextlib.suppress(errors.Unusable),
        domain_of(fake).export_snapshot("acstor-1", "", tmp_path),
    ):
        assert fake.timeout_s == BLOCK
    assert "fsFreeze" in fake.reported
    assert fake.timeout_s == BLOCK


@pytest.mark.expect_log("cannot thaw")
def test_failed_thaw_is_logged(domain_of, tmp_path):
    with domain_of(Domain("fsThaw")).export_snapshot("acstor-1", "", tmp_path) as moment:
        assert moment.is_frozen


def test_guest_without_agent_is_not_frozen(domain_of, tmp_path):
    fake = Domain()
    with domain_of(fake, has_agent=False).export_snapshot("acstor-1", "", tmp_path) as moment:
        assert not moment.is_frozen
    assert not [name for name in fake.reported if name.startswith("fs")]


@pytest.mark.parametrize("may_be_frozen", [True, False])
def test_cleanup_thaws_only_possibly_frozen_file_systems(domain_of, tmp_path, may_be_frozen):
    fake = Domain()
    fake.isActive = lambda: True
    fake.timeout_s = 10  # of a killed daemon
    domain_of(fake).clean_up(["acstor-1"], tmp_path, may_be_frozen=may_be_frozen)
    assert ("fsThaw" in fake.reported) is may_be_frozen
    assert (fake.timeout_s == BLOCK) is may_be_frozen


def test_export_files_are_removed_after_a_failure(domain_of, tmp_path):
    fake = Domain()
    with contextlib.suppress(ZeroDivisionError):
        with domain_of(fake).export_snapshot("acstor-1", "", tmp_path) as moment:
            open(moment.export.path, "w").close()
            raise ZeroDivisionError
    assert list(tmp_path.glob("acstor-*")) == []
