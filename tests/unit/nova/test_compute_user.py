# SPDX-License-Identifier: Apache-2.0
"""User, groups and configuration files of nova-compute, from /proc."""

import os

import pytest

from acstor_common import errors
from acstor_nova import compute_user
from acstor_nova.checks import host_check


@pytest.fixture
def put(tmp_path):
    def put(pid, *words, uid=0, gid=0, groups="", end="\0", started_by=None, exe="python3.11"):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "cmdline").write_bytes(end.join(words).encode() + end.encode())
        (folder / "exe").symlink_to(f"/usr/bin/{exe}")
        by = uid if started_by is None else started_by
        status = f"Name:\tpython3\nUid:\t{by}\t{uid}\t{uid}\t{uid}\n"
        status += f"Gid:\t{gid}\t{gid}\t{gid}\t{gid}\nGroups:\t{groups} \n"
        (folder / "status").write_text(status)

    return put


SCRIPT = ("/opt/nova/bin/python3", "/opt/nova/bin/nova-compute")
NOGROUP = frozenset({65534})
TITLE = "nova-compute: master process [/usr/bin/nova-compute --config-file /etc/nova/cpu.conf]"


@pytest.mark.parametrize("words", [SCRIPT, SCRIPT[1:], (TITLE,)], ids=["python", "script", "title"])
def test_user_and_groups_are_those_of_the_process(tmp_path, put, words):
    put(40, "vi", "/etc/nova/nova-compute.conf", "nova-compute")
    put(70, *words, uid=65534, gid=4, groups="4 6")
    found = compute_user.find_user("", tmp_path, "nobody")
    assert found == ("nobody", 65534, 4, frozenset({4, 6}), 70)
    assert str(found) == "user nobody, groups adm, disk (nova-compute, process 70)"
    assert compute_user.find_user("nobody", tmp_path, "nobody") == found
    assert compute_user.find_user("daemon", tmp_path, "nobody").pid is None


EVIL = (*SCRIPT, "--config-file", "/tmp/evil.conf")


@pytest.mark.parametrize(
    "who",
    [{"uid": 65534}, {"started_by": 65534}, {"exe": "su"}],
    ids=["local user", "with root's rights", "no Python"],
)
def test_untrusted_process_named_nova_compute_is_ignored(tmp_path, put, who):
    """A local user's process may have nova-compute's name and a lower pid."""
    put(60, *EVIL, **who)
    assert compute_user.running_user(tmp_path) is None and compute_user.config_args(tmp_path) == []
    put(70, *SCRIPT, "--config-file", "/etc/nova/nova.conf")
    assert compute_user.running_user(tmp_path).pid == 70
    assert compute_user.config_args(tmp_path) == ["--config-file=/etc/nova/nova.conf"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder to somebody")
def test_owner_of_novas_configuration_is_accepted(tmp_path, put):
    put(70, *SCRIPT, uid=65534)
    (tmp_path / "etc/nova").mkdir(parents=True)
    os.chown(tmp_path / "etc/nova", 65534, -1)
    assert compute_user.running_user(tmp_path).pid == 70


def test_process_that_ends_during_the_check_is_ignored(tmp_path, put):
    put(70, *SCRIPT)
    (tmp_path / "proc/70/status").unlink()
    put(71, *SCRIPT)
    (tmp_path / "proc/71/status").write_text("Uid:\n")
    assert compute_user.running_user(tmp_path) is None


def test_configuration_files_are_those_on_the_command_line(tmp_path, put):
    assert compute_user.config_args(tmp_path) == []
    more = ("--config-file", "/etc/nova/a b", "--config-dir=/etc/nova/d", "--config-file=relative")
    put(70, *SCRIPT, *more[2:], "--config-file", "/etc/nova/nova.conf")
    given = compute_user.config_args(tmp_path)
    assert given == ["--config-dir=/etc/nova/d", "--config-file=/etc/nova/nova.conf"]


def test_configuration_files_are_read_from_a_process_title(tmp_path, put):
    put(70, TITLE)
    assert compute_user.config_args(tmp_path) == ["--config-file=/etc/nova/cpu.conf"]


def test_unknown_user_is_refused():
    with pytest.raises(errors.Unusable, match="there is no user nobody-of-that-name"):
        compute_user.find_user("nobody-of-that-name")


def test_group_added_after_the_start_is_a_warning(tmp_path, put):
    """The package may add nova to a group while nova-compute is running."""
    put(70, *SCRIPT, uid=65534, gid=0, groups="0")
    user = compute_user.find_user("", tmp_path, "nobody")
    found = host_check.check_user(user, NOGROUP)
    assert found.level == "warning" and "nogroup too, its process is not" in found.detail
    assert host_check.check_user(compute_user.account("nobody"), NOGROUP).level == "ok"


def test_irrelevant_group_may_be_missing(tmp_path, put):
    """In DevStack nova-compute has libvirt's group instead of its user's own."""
    put(70, *SCRIPT, uid=65534, gid=4, groups="4")
    user = compute_user.find_user("", tmp_path, "nobody")
    found = host_check.check_user(user, frozenset({4}))
    assert found.level == "ok" and "groups adm" in found.detail


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look as somebody else")
def test_user_is_restored_after_an_exception():
    before = compute_user.current_user()
    with pytest.raises(ZeroDivisionError), compute_user.acting_as(compute_user.account("nobody")):
        assert compute_user.current_user()[:3] == compute_user.account("nobody")[:3]
        assert compute_user.current_user().groups == compute_user.account("nobody").groups
        raise ZeroDivisionError
    assert compute_user.current_user() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may be somebody else")
def test_check_by_another_user_advises_to_run_as_root(tmp_path, put):
    put(70, *SCRIPT, uid=2, gid=2)
    user = compute_user.find_user("", tmp_path, "bin")
    with compute_user.acting_as(compute_user.account("nobody")):
        found = host_check.check_user(user, NOGROUP)
        with compute_user.acting_as(user):
            assert compute_user.current_user().name == "nobody"
    assert found.level == "warning" and "as root" in found.remedy
