# SPDX-License-Identifier: Apache-2.0
"""Every installed command starts, and prints only its output."""

import gc
import importlib
import os
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

from acstor_common.service import console_script
from acstor_common.service import version
from acstor_simulator.cmd import simulate
from tests.fakes import forked_command

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


# oslo.utils up to 8 imports eventlet if Nova has installed it, which prints a warning.
_NO_EVENTLET = r"import warnings; warnings.filterwarnings('ignore', r'\s*Eventlet is')"


def command(name: str, before: str = "pass") -> list[str]:
    """Return an argv that starts a command as its installed script does.

    :param before: code that is run first
    """
    module, _, function = SCRIPTS[name].partition(":")
    code = f"import sys; sys.argv[0] = {name!r}; {before}; from {module} import {function}; "
    return [sys.executable, "-c", f"{code}sys.exit({function}())"]


def forked(name: str, words: str) -> subprocess.CompletedProcess[str]:
    module, _, function = SCRIPTS[name].partition(":")
    start = getattr(importlib.import_module(module), function)
    return forked_command.run(start, *words.split(), name=name)


def test_rest_api_starts_without_a_warning(tmp_path: pathlib.Path) -> None:
    conf = tmp_path / "acstor-decision.conf"
    conf.write_text(
        f"[database]\nconnection = sqlite:///{tmp_path}/db\n[acstor_decision_api]\nauth = none\n"
    )
    environment = {**os.environ, "ACSTOR_DECISION_CONF": str(conf)}
    argv = [sys.executable, "-c", "import acstor_decision.wsgi"]
    done = subprocess.run(
        argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("module", "variable", "text", "said"),
    [
        (
            "acstor_decision.wsgi",
            "ACSTOR_DECISION_CONF",
            "[keystone_authtoken]\nauth_type = password\n",
            "the REST API of acstor: [keystone_authtoken]: Auth plugin requires parameters which "
            "were not given: auth_url",
        ),
        (
            "acstor_decision.wsgi",
            "ACSTOR_DECISION_CONF",
            "[database]\nconnection = nonsense\n",
            "the REST API of acstor: [database] connection: ",
        ),
    ],
)
def test_api_that_cannot_start_names_the_reason_in_its_last_line(
    module: str, variable: str, text: str, said: str, tmp_path: pathlib.Path
) -> None:
    conf = tmp_path / "test.conf"
    conf.write_text(text)
    environment = {**os.environ, variable: str(conf)}
    argv = [sys.executable, "-c", f"import {module}"]
    done = subprocess.run(
        argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == console_script.NO_APPLICATION and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(said), done.stderr


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_is_printed_without_a_warning(name: str) -> None:
    argv = [*command(name, _NO_EVENTLET), "--help"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage:")


@pytest.mark.parametrize("name", ["acstor-agent", "acstor-nova-manage"])
def test_command_prints_the_version_of_the_distribution(name: str) -> None:
    argv = [*command(name), "--version"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{name} {version.installed()}\n"


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("acstor-agent-ctl", "attach debian", "not an image id (a UUID is expected): 'debian'"),
        ("acstor-agent-ctl", "drop-disk root", "not a disk id (a UUID is expected): 'root'"),
        ("acstor-boot-image", "build x --idle 0", "not a number from 1 to 86400: '0'"),
        ("acstor-decision-manage", "history --limit -1", "not a number from 1 to 10000: '-1'"),
        ("acstor-glance-manage", "list debian", "not an image id (a UUID is expected): 'debian'"),
        ("acstor-simulate", "compare --pods ten", "not a number from 1 to 1000000: 'ten'"),
    ],
)
def test_error_of_an_invalid_argument_names_valid_values(name: str, words: str, said: str) -> None:
    done = forked(name, words)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        (
            "acstor-agent-ctl",
            "--socket /nowhere/control.sock status",
            "no answer from the agent at /nowhere/control.sock: No such file or directory. Does "
            "acstor-agent run on this host (systemctl status acstor-agent), and are you root?",
        ),
        ("acstor-agent-ctl", "set-ring /nowhere/ring", "/nowhere/ring: No such file or directory"),
        ("acstor-authority", "show /nowhere", "/nowhere/ca.pem: No such file or directory"),
        (
            "acstor-checkpointd",
            "--config-file /dev/null",
            "[DEFAULT] transport_url, [acstor_checkpoint] vault_listen: "
            "neither is set in /dev/null, so there is nothing to do. Set the broker",
        ),
        ("acstor-boot-image", "show /nowhere", "/nowhere: No such file or directory"),
        ("acstor-glance-listener", "--config-file /nowhere", "Failed to find some config files"),
    ],
)
def test_failure_is_reported_in_one_line(name: str, words: str, said: str) -> None:
    done = forked(name, words)
    assert done.returncode != 0 and done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith(f"{name}: {said}"), done.stderr
    assert "Traceback" not in done.stderr and "Errno" not in done.stderr


def test_simulation_reports_an_unwritable_picture(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write(_options: object) -> None:
        (tmp_path / "gone" / "picture").write_text("")

    monkeypatch.setattr(simulate, "_figure", write)
    assert simulate.main(["figure", "6"]) == 1
    assert capsys.readouterr().err == (
        f"acstor-simulate: {tmp_path}/gone/picture: No such file or directory\n"
    )


EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
GONE = ["cryptography", "libvirt", "oslo_log", "oslo_service", "prettytable", "tqdm", "trio"]
"""Enough of each extra's libraries that no command works without them."""


def test_every_command_module_can_be_run_with_python() -> None:
    modules = {
        path
        for path in ROOT.glob("acstor_*/cmd/*.py")
        if re.search(r"^def main\(", path.read_text(), re.MULTILINE)
    }
    assert len(modules) == len(SCRIPTS)
    guard = '\n\nif __name__ == "__main__":\n    sys.exit(main())\n'
    assert [path for path in modules if not path.read_text().endswith(guard)] == []


def test_command_module_behaves_like_the_command() -> None:
    argv = [sys.executable, "-m", "acstor_glance.cmd.prehash", "--help"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: ")


@pytest.mark.parametrize("name", SCRIPTS)
def test_command_of_an_uninstalled_role_names_the_extra(name: str) -> None:
    extra = SCRIPTS[name].partition(".")[0].removeprefix("acstor_")
    assert extra in EXTRAS
    block = f"sys.modules.update(dict.fromkeys({GONE}))"
    argv = [*command(name, block), "--help"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    [line] = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert line.startswith(f"{name}: needs acstor[{extra}], which is not installed here")


def test_wsgi_application_fails_with_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with (
        pytest.raises(SystemExit) as ended,
        console_script.exit_on_error("the gateway", ValueError),
    ):
        raise ValueError("no stores")
    assert ended.value.code == console_script.NO_APPLICATION
    assert capsys.readouterr().err == "the gateway: no stores\n"
    with pytest.raises(KeyError), console_script.exit_on_error("the gateway", ValueError):
        raise KeyError("a fault of its own")


def test_missing_module_of_acstor_is_not_reported_as_a_missing_extra() -> None:
    start = console_script.entry_point("acstor-x", "acstor_common.no_such_module", "agent")
    with pytest.raises(ModuleNotFoundError):
        start()


def test_garbage_collector_is_enabled_after_the_import_of_a_command() -> None:
    frozen = gc.get_freeze_count()
    console_script.import_for_life("acstor_common.errors")
    assert gc.isenabled() and gc.get_freeze_count() > frozen
    with pytest.raises(ModuleNotFoundError):
        console_script.import_for_life("acstor_common.no_such_module")
    assert gc.isenabled()
