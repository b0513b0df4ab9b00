# SPDX-License-Identifier: Apache-2.0
"""The AppArmor rules of a domain's QEMU during a checkpoint.

libvirt, QEMU and the helper that makes a domain's profile are real.  The tests' kernels have no
AppArmor: the tests compile the profile and read its rules.

"""

import contextlib
import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tests.fakes import hosts
from tests.lab import domain as domain_lab

HELPER = "/usr/lib/libvirt/virt-aa-helper"
BASE = bytes(1 << 20)
BITMAP = "acstor-0123456789ab"
TAKE = """
import json, os, pathlib, sys
from acstor_checkpoint.capture import overlay
from acstor_checkpoint.capture.domains import domain_list
instance, mirrors, folder, how = sys.argv[1:]
folder = pathlib.Path(folder)
found = domain_list.Domains("qemu:///system", lambda path: overlay.base_of(path, mirrors))
(server,) = [one for one in found.list_servers().servers if one.instance == instance]
domain = found.find_domain(server)
if how == "clear":
    domain.clean_up([BITMAP], folder, may_be_frozen=False)
    print(json.dumps({"has_job": bool(domain._socket())}))
    sys.exit()
with domain.export_snapshot(BITMAP, "", folder) as moment:
    scratch, = folder.glob("*.scratch")
    reported = {
        "socket": moment.export.path,
        "is_socket": pathlib.Path(moment.export.path).is_socket(),
        "scratch": str(scratch),
        "xml": domain._domain.XMLDesc(),
    }
    print(json.dumps(reported), flush=True)
    if how == "kill":
        os._exit(0)
"""

pytestmark = [
    hosts.needs_fuse,
    pytest.mark.skipif(
        not pathlib.Path(HELPER).exists() or shutil.which("apparmor_parser") is None,
        reason="AppArmor's and libvirt's packages are not installed: run tools/install.sh",
    ),
]


@pytest.fixture
def guest(host, tmp_path):
    with contextlib.closing(domain_lab.Domain(host, tmp_path, BASE, 4 << 20)) as made:
        made.domain.create()
        yield made


def take(host, guest, folder, how):
    """Export a snapshot of a guest's disk in a process of its host, and return its report."""
    argv = [sys.executable, "-c", TAKE.replace("BITMAP", repr(BITMAP))]
    argv += [guest.instance, str(guest.mirrors), str(folder), how]
    done = subprocess.run([*host.enter(), *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def rules(xml, *more):
    """Return the rules that libvirt makes for a domain's own profile."""
    name = "libvirt-" + re.search("<uuid>(.+)</uuid>", xml)[1]
    argv = [HELPER, *(more or ["-c"]), "--dryrun", "--uuid", name]
    done = subprocess.run(argv, input=xml, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return re.findall(r'^  (?:owner )?"(.+)" (\w+),$', done.stdout + done.stderr, re.MULTILINE)


def allows(found, path, mode):
    def matches(pattern):
        text = re.escape(pattern).replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
        return re.fullmatch(text, path)

    return any(matches(pattern) and set(mode) <= set(modes) for pattern, modes in found)


def other(xml):
    """Return the XML of another server, whose name and number begin alike."""
    xml = re.sub("<uuid>.+</uuid>", "<uuid>0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12</uuid>", xml)
    xml = re.sub("(<name>instance-[^<]+)</name>", r"\g<1>0</name>", xml)
    return re.sub("(<domain [^>]*id=')", r"\g<1>1", xml)


def test_domain_profile_allows_only_its_own_socket_and_scratch_file(host, guest, tmp_path):
    folder = tmp_path / "sockets"
    folder.mkdir()
    reported = take(host, guest, folder, "take")
    xml, socket, scratch = reported["xml"], reported["socket"], reported["scratch"]
    assert reported["is_socket"]
    assert allows(rules(xml), socket, "rw")
    assert not allows(rules(other(xml)), socket, "w")
    assert not allows(rules(xml), scratch, "w")  # libvirt adds it for the time of the backup
    assert allows(rules(xml, "-r", "-F", scratch), scratch, "rwk")
    assert list(folder.iterdir()) == []


def test_profile_with_these_rules_compiles(host, guest, tmp_path):
    xml = guest.domain.XMLDesc()
    name = f"libvirt-{guest.instance}"
    (tmp_path / "libvirt").mkdir()
    text = "".join(f'  "{path}" {mode},\n' for path, mode in rules(xml))
    (tmp_path / "libvirt" / f"{name}.files").write_text(text)
    template = pathlib.Path("/etc/apparmor.d/libvirt/TEMPLATE.qemu").read_text()
    include = f"  #include <libvirt/{name}.files>\n}}"
    profile = template.replace("LIBVIRT_TEMPLATE", name).replace("}", include)
    argv = ["apparmor_parser", "--skip-kernel-load", "--skip-cache", "--base", "/etc/apparmor.d"]
    done = subprocess.run(
        [*argv, "--Include", tmp_path], input=profile, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_job_and_socket_of_a_killed_daemon_are_cleared(host, guest, tmp_path):
    folder = tmp_path / "sockets"
    folder.mkdir()
    reported = take(host, guest, folder, "kill")
    seen = pathlib.Path(f"/proc/{host.pid}/root{reported['socket']}")
    assert seen.exists() and list(folder.iterdir())
    assert take(host, guest, folder, "clear") == {"has_job": False}
    assert not seen.exists() and list(folder.iterdir()) == []
