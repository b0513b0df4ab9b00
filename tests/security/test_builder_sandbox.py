# SPDX-License-Identifier: Apache-2.0
"""An attacker who breaks out of QEMU: what the builder's sandbox exposes and allows.

The sandbox is real, run by root and by an ordinary user; the attacker is a program in QEMU's
place.

"""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time

import pytest

from acstor_common import errors
from acstor_common.formats import chunk_map
from acstor_common.model import ids
from acstor_glance import sandbox
from acstor_glance.boot import boot_builder
from acstor_glance.boot import boot_guest
from acstor_glance.boot import boot_image_maker
from acstor_glance.boot import build_modes
from acstor_glance.prepare import prehash
from tests.fakes import boot_sectors
from tests.fakes import glance_options
from tests.fakes import missing_programs

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed: run tools/install.sh"
)
needs_qemu = pytest.mark.skipif(
    shutil.which("qemu-system-x86_64") is None, reason="qemu-system-x86 is not installed"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
ROOT = pathlib.Path(__file__).resolve().parents[2]
BWRAP = sandbox.Sandbox.BUBBLEWRAP
IMAGE_ID = ids.parse_image_id("7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11")
MIB = 1 << 20
LIMITS = boot_guest.GuestLimits(longest_s=60.0, idle_s=20.0, memory_bytes=64 * MIB)
PYTHON = "/usr/bin/python3"
AS_NOBODY = ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]

MAKE = """
import json, os, sys
from acstor_glance import sandbox  # first: the checkout may lie where only its owner may enter
is_other, kind, bounds = json.loads(sys.argv[1])
if is_other:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
print(*sandbox.command_prefix(sandbox.Sandbox(kind), bounds), sep=chr(10))
"""


@pytest.fixture(params=["root", "ordinary user"])
def inside(request):
    """Return a function that runs a program in the sandbox, as root or as an ordinary user."""
    is_other = request.param == "ordinary user" and os.geteuid() == 0
    if request.param == "root" and os.geteuid():
        pytest.skip("needs root")

    def run(code, bounds=None, **options):
        """Run Python there; a process of that user makes its arguments."""
        who = AS_NOBODY if is_other else []
        argv = subprocess.run(
            [sys.executable, "-c", MAKE, json.dumps([is_other, BWRAP.value, bounds or {}])],
            capture_output=True, text=True, check=True, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ).stdout.splitlines()  # fmt: skip
        return subprocess.run(
            [*who, *argv, PYTHON, "-c", code],
            capture_output=True, text=True, timeout=60, check=False, cwd="/", **options,
        )  # fmt: skip

    return run


def test_sandbox_contains_no_file_of_this_host(inside, tmp_path):
    (tmp_path / "secret").write_text("x")
    code = f"""
import os
print(sorted(os.listdir("/")))
for path in ("/etc/passwd", "/proc/self", "/sys", "/run", "/root", "/home", {str(tmp_path)!r}):
    assert not os.path.exists(path), path
assert os.listdir("/usr/local") == []
for path in ("/x", "/usr/x", "/usr/bin/x", "/dev/x"):
    try:
        open(path, "w")
    except OSError:
        continue
    raise SystemExit(path)
"""
    done = inside(code)
    assert done.returncode == 0, done.stderr
    shown = set(eval(done.stdout))
    assert {"dev", "usr"} <= shown <= {"dev", "usr", *sandbox._LINKS}


def test_sandbox_has_no_network(inside):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"""
import socket
assert [name for _, name in socket.if_nameindex()] == ["lo"]
for address in ("127.0.0.1", "192.0.2.1"):
    try:
        socket.create_connection((address, {port}), 2)
    except OSError:
        continue
    raise SystemExit(address)
"""
        done = inside(code)
    assert done.returncode == 0, done.stderr


def test_sandbox_cannot_reach_abstract_sockets_of_the_host(inside):
    name = f"acstor-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        done = inside(f"import socket; socket.socket(socket.AF_UNIX).connect(chr(0) + {name!r})")
    assert "ConnectionRefusedError" in done.stderr


def test_sandbox_cannot_see_or_signal_other_processes(inside):
    other = subprocess.Popen([*AS_NOBODY, "sleep", "60"] if not os.geteuid() else ["sleep", "60"])
    try:
        code = f"""
import os
assert os.getpid() < 10, os.getpid()
for number in (0, 9):
    try:
        os.kill({other.pid}, number)
    except ProcessLookupError:
        continue
    raise SystemExit("it is there")
"""
        done = inside(code)
        assert done.returncode == 0, done.stderr
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("inside", ["ordinary user"], indirect=True)
def test_sandbox_cannot_create_a_user_namespace(inside):
    """In its own user namespace a program would have capabilities again."""
    done = inside("import os; os.execvp('unshare', ['unshare', '--user', 'true'])")
    assert done.returncode and "unshare" in done.stderr


def test_sandbox_has_no_privileges_and_cannot_gain_any(inside):
    done = inside(
        "import ctypes, os; c = ctypes.CDLL(None, use_errno=True);"
        "print(os.getuid(), c.prctl(39, 0, 0, 0, 0),"  # PR_GET_NO_NEW_PRIVS
        " c.setuid(0), c.mount(b'none', b'/dev', b'tmpfs', 0, None), c.chroot(b'/usr'))"
    )
    assert done.stdout.split()[1:] == ["1", "-1", "-1", "-1"], done
    assert done.stdout.split()[0] != "0"


def test_sandbox_inherits_only_the_passed_descriptors(inside, tmp_path):
    with (tmp_path / "kept").open("w") as kept, (tmp_path / "given").open("w") as given:
        os.set_inheritable(kept.fileno(), False)
        code = f"""
import os
os.write({given.fileno()}, b"x")
for fd in range(3, 256):
    try:
        os.fstat(fd)
    except OSError:
        continue
    print(fd)
"""
        done = inside(code, pass_fds=[given.fileno()])
        assert done.stdout.split() == [str(given.fileno())], done.stderr


def test_sandbox_limits_files_processes_and_address_space(inside):
    bounds = {"fsize": MIB, "nproc": 16, "as": 512 * MIB, "nofile": 32}
    code = f"""
import os, signal, time
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
big = os.memfd_create("x")
try:
    os.write(big, bytes({MIB})), os.write(big, b"x")
except OSError as e:
    print("file", e.errno)
try:
    bytearray({600 * MIB})
except MemoryError:
    print("memory")
children = 0
try:
    for _ in range(64):
        if not os.fork():
            time.sleep(20)
            os._exit(0)
        children += 1
except BlockingIOError:
    print("processes", children < 16, flush=True)
"""
    done = inside(code, bounds)
    assert done.stdout.split("\n") == ["file 27", "memory", "processes True", ""], done.stderr


def test_sandbox_limits_files_in_memory(inside):
    """No process owns files in memory, so no limit of a process applies."""
    code = f"""
import os
written = 0
try:
    with open("/dev/shm/x", "wb", buffering=0) as file:
        for _ in range(64):
            written += file.write(bytes({MIB}))
except OSError:
    pass
print(written <= {MIB})
"""
    assert inside(code).stdout.strip() == "True"


# The builder with another program in QEMU's place


def instead_of_qemu(monkeypatch, code):
    monkeypatch.setattr(boot_guest, "_argv", lambda *_: [PYTHON, "-u", "-c", code])


def prepared(folder):
    image = folder / f"{IMAGE_ID}.raw"
    image.write_bytes(boot_sectors.image(boot_sectors.HANG, 4 * MIB))
    map_path = folder / "map"
    prehash.prehash(image, map_path, IMAGE_ID)
    return image, chunk_map.ChunkMap.parse(map_path.read_bytes(), str(map_path))


@needs_qemu
def test_memory_bomb_is_killed_and_reported(tmp_path, monkeypatch):
    image, image_map = prepared(tmp_path)
    bomb = f"import time\nkept = []\nwhile 1: kept.append(b'x' * {32 * MIB}); time.sleep(0.02)"
    instead_of_qemu(monkeypatch, bomb)
    with pytest.raises(errors.Unusable, match=r"it took \d+ MiB of memory, more than 832, and was"):
        boot_builder.build(image, image_map, tmp_path / "out", limits=LIMITS)
    assert not (tmp_path / "out").exists()
    assert no_sandbox_is_left()


@needs_qemu
def test_memory_bomb_of_many_processes_is_counted_together(tmp_path, monkeypatch):
    image, image_map = prepared(tmp_path)
    bomb = (
        "import os, time\nfor _ in range(3): os.fork()\n"
        f"kept = b'x' * {150 * MIB}\ntime.sleep(50)"
    )  # fmt: skip
    instead_of_qemu(monkeypatch, bomb)
    with pytest.raises(errors.Unusable, match="of memory, more than 832, and was killed"):
        boot_builder.build(image, image_map, tmp_path / "out", limits=LIMITS)
    assert no_sandbox_is_left()


@needs_qemu
def test_oom_killer_prefers_the_sandbox(tmp_path, monkeypatch):
    image, image_map = prepared(tmp_path)
    instead_of_qemu(monkeypatch, "import time\ntime.sleep(3)")
    seen = []

    def look(_seconds_s, _chunks):
        for pid in sandbox.process_tree(os.getpid()):
            if b"time.sleep(3)" in command_of(pid):
                with contextlib.suppress(OSError):
                    seen.append(pathlib.Path(f"/proc/{pid}/oom_score_adj").read_text().strip())

    with pytest.raises(errors.Unusable, match="it ended before the image was read"):
        boot_builder.build(image, image_map, tmp_path / "out", limits=LIMITS, progress=look)
    assert seen
    assert set(seen) == {"1000"}


@needs_qemu
def test_killed_qemu_is_reported(tmp_path, monkeypatch):
    image, image_map = prepared(tmp_path)
    instead_of_qemu(monkeypatch, "import os, time\ntime.sleep(1)\nos.kill(os.getpid(), 9)")
    with pytest.raises(errors.Unusable, match=r"was killed after . s, by a user or for lack of"):
        boot_builder.build(image, image_map, tmp_path / "out", limits=LIMITS)


@needs_qemu
def test_flood_of_output_is_read_and_stopped(tmp_path, monkeypatch):
    image, image_map = prepared(tmp_path)
    flood = "import os\nwhile 1: os.write(1, b'x' * 65536), os.write(2, b'y' * 4096)"
    instead_of_qemu(monkeypatch, flood)
    limits = boot_guest.GuestLimits(
        longest_s=20.0, idle_s=20.0, memory_bytes=64 * MIB, written_bytes=4 * MIB
    )
    with pytest.raises(errors.Unusable, match=r"ended before the image was read: y{1000}"):
        boot_builder.build(image, image_map, tmp_path / "out", limits=limits)


def no_sandbox_is_left():
    """Return whether soon no bubblewrap process is left below this one."""
    end_s = time.monotonic() + 10.0
    while any(b"bwrap" in command_of(pid) for pid in sandbox.process_tree(os.getpid())):
        if time.monotonic() > end_s:
            return False
        time.sleep(0.05)
    return True


def command_of(pid):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


# Without a sandbox


@needs_qemu
def test_missing_bubblewrap_stops_the_build_and_names_the_remedy(tmp_path, monkeypatch):
    image, image_map = prepared(tmp_path)
    with monkeypatch.context() as patch:
        missing_programs.hide(patch, tmp_path / "programs", "bwrap")
        with pytest.raises(errors.Unusable, match=r"bwrap.*Install bubblewrap.*--sandbox no"):
            boot_builder.build(image, image_map, tmp_path / "out", limits=LIMITS)
    limits = boot_guest.GuestLimits(longest_s=60.0, idle_s=2.0, memory_bytes=64 * MIB)
    trusting = sandbox.Sandbox.NONE
    built = boot_builder.build(
        image, image_map, tmp_path / "out", limits=limits, isolation=trusting
    )  # fmt: skip
    assert built.end == "idle"


@needs_root
def test_forbidden_user_namespaces_are_reported_with_the_remedy(tmp_path):
    """The limit applies to a user namespace of its own, so that this machine is not affected."""
    code = (
        "from acstor_glance import sandbox; from acstor_common import errors\n"
        "open('/proc/sys/user/max_user_namespaces', 'w').write('0')\n"
        "import os; os.geteuid = lambda: 1000\n"
        "try: sandbox.check_sandbox(sandbox.Sandbox.BUBBLEWRAP)\n"
        "except errors.Unusable as e: print(e)"
    )
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", sys.executable, "-c", code],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert "cannot create the builder's sandbox: bwrap: " in done.stdout, done.stderr
    assert "user.max_user_namespaces" in done.stdout


@pytest.mark.expect_log(r"no boot images will be built: bwrap: cannot create the builder's")
def test_listener_without_bubblewrap_records_boots_only(tmp_path, monkeypatch):
    conf = glance_options.conf(state_dir=tmp_path, boot_images="both")
    missing_programs.hide(monkeypatch, tmp_path / "programs", "bwrap")
    ways = build_modes.choose_modes(conf)
    assert ways == build_modes.BuildModes(builds=True, records=True)  # as configured
    assert boot_image_maker.BootImageMaker(None, conf, ways).list_recorded() == []
    conf.clear_override("boot_images", "acstor_glance")
    assert build_modes.choose_modes(conf) == build_modes.BuildModes(builds=False, records=True)
