# SPDX-License-Identifier: Apache-2.0
"""Loading of options, and warnings for unknown options."""

import importlib.metadata
import pathlib
import subprocess
import sys

import pytest
from oslo_config import cfg

from acstor_agent.cmd import agent
from acstor_common.service import conf as common_conf
from acstor_common.service import unknown_options


def test_option_set_in_one_object_is_not_seen_in_others():
    first, second = cfg.ConfigOpts(), cfg.ConfigOpts()
    for one in (first, second):
        common_conf.register_opts(one)
        one([], default_config_files=[], default_config_dirs=[])
    first.set_override("mount_point", "/elsewhere", common_conf.GROUP.name)
    assert first.acstor.mount_point == "/elsewhere"
    assert second.acstor.mount_point == "/var/lib/acstor/mirror"


AGENT = [
    (cfg.OptGroup("acstor"), common_conf.OPTS),
    (
        cfg.OptGroup("acstor_agent"),
        [
            cfg.StrOpt("cache_dir"),
            cfg.StrOpt("host", deprecated_name="name-of-host"),
            cfg.StrOpt("peer_listen", deprecated_name="listen", deprecated_group="acstor_peers"),
        ],
    ),
    (cfg.OptGroup("source_http"), [cfg.StrOpt("url")]),
]


def register(conf):
    for group, options in AGENT:
        common_conf.register(conf, group, options)


def strays_of(tmp_path, *texts, args=()):
    """Return the unknown options found in files with the given texts."""
    files = []
    for number, text in enumerate(texts):
        files.append(tmp_path / f"{number}.conf")
        files[-1].write_text(text)
    conf = cfg.ConfigOpts()
    named = [f"--config-file={file}" for file in files]
    common_conf.read(conf, [*named, *args], "acstor-agent", register, AGENT)
    return [
        (pathlib.Path(stray.file).name, stray.section, stray.option, stray.nearest)
        for stray in common_conf.unknown(conf, AGENT)
    ]


@pytest.mark.parametrize(
    ("text", "stray"),
    [
        (
            "[acstor_agent]\nmount_point = /m",
            ("acstor_agent", "mount_point", "[acstor] mount_point"),
        ),
        ("[acstor_agent]\ncahe_dir = /c", ("acstor_agent", "cahe_dir", "[acstor_agent] cache_dir")),
        ("[acstor_agent]\nurl = x", ("acstor_agent", "url", "[source_http] url")),
        ("[acstor]\ncontrl_socket = x", ("acstor", "contrl_socket", "[acstor] control_socket")),
        ("[acstor]\npeer_lisen = x", ("acstor", "peer_lisen", "[acstor_agent] peer_listen")),
        ("[acstor_agent]\nfrobnicate = 1", ("acstor_agent", "frobnicate", "")),
        ("[ACSTOR_Agent]\nhots = 1", ("ACSTOR_Agent", "hots", "[acstor_agent] host")),
        ("[DEFAULT]\nmount_point = /m", ("DEFAULT", "mount_point", "[acstor] mount_point")),
        ("[acstor_agnet]\nhost = h1", ("acstor_agnet", "", "[acstor_agent]")),
        ("[acstor-agent]\nhost = h1", ("acstor-agent", "", "[acstor_agent]")),
        ("[acstr]\nmount_point = /m", ("acstr", "", "[acstor]")),
        ("[source_htpp]\nurl = x", ("source_htpp", "", "[source_http]")),
        ("[source_rbd]\npool = x", ("source_rbd", "", "")),
    ],
)
def test_unknown_option_is_named_with_a_suggestion(tmp_path, text, stray):
    assert strays_of(tmp_path, text) == [("0.conf", *stray)]


@pytest.mark.parametrize(
    "text",
    [
        "[acstor_agent]\nhost = h1\ncache-dir = /c\n[acstor]\nmount_point = /m",
        "[acstor_agent]\nname-of-host = former name\nname_of_host = in its other spelling",
        "[acstor_peers]\nlisten = former name and section",
        "[acstor_glance]\nworkers = of another service",
        "[DEFAULT]\nhost = of another project\ntransport_url = of a library\ndebug = true",
        "[libvirt]\ncache_dir = of another project",
        "[switch_loads_static]\nfile = of another service",
    ],
)
def test_known_and_foreign_options_are_not_reported(tmp_path, text):
    assert strays_of(tmp_path, text) == []


def test_all_configuration_files_and_directories_are_checked(tmp_path):
    folder = tmp_path / "conf.d"
    folder.mkdir()
    (folder / "b.conf").write_text("[acstor_agent]\nhots = h2\n")
    (folder / "a.conf").write_text("[acstor_agent]\nhost = h1\n")
    (folder / "notes.txt").write_text("[acstor_agent]\nhosts = h3\n")
    first, second = "[acstor_agent]\ncache_dri = /1\n", "[acstor_agent]\ncache_dri = /2\n"
    found = strays_of(tmp_path, first, second, args=[f"--config-dir={folder}"])
    assert [(file, option) for file, _, option, _ in found] == [
        ("0.conf", "cache_dri"),
        ("1.conf", "cache_dri"),
        ("b.conf", "hots"),
    ]


def test_deleted_file_reports_nothing(tmp_path):
    file = tmp_path / "a.conf"
    file.write_text("[acstor_agent]\nhots = h1\n")
    conf = cfg.ConfigOpts()
    common_conf.read(conf, [f"--config-file={file}"], "acstor-agent", register, AGENT)
    assert len(common_conf.unknown(conf, AGENT)) == 1
    file.unlink()
    assert common_conf.unknown(conf, AGENT) == []


@pytest.mark.expect_log(
    r"a.conf: there is no \[acstor_agent\] mount_point, it is ignored; "
    r"did you mean \[acstor\] mount_point\?$"
)
def test_agent_warns_of_an_unknown_option_and_starts(tmp_path):
    file = tmp_path / "a.conf"
    file.write_text(
        "[acstor_agent]\nmount_point = /m\nhost = h7\n[source_glance]\n"
        "application_credential_id = x\npassword = y\nauth_url = z\n"
    )
    conf = agent.load_conf(["--config-file", str(file)])
    assert (conf.acstor_agent.host, conf.acstor.mount_point) == ("h7", "/var/lib/acstor/mirror")


@pytest.mark.expect_log(r"there is no section \[enrollment\], .* did you mean \[enrolment\]\?$")
def test_misspelled_agent_section_is_named_with_a_suggestion(tmp_path):
    file = tmp_path / "a.conf"
    file.write_text("[enrollment]\nauth_url = z\n[enrolment]\nusername = y\n")
    agent.load_conf(["--config-file", str(file)])


@pytest.mark.parametrize("of_the_api", [False, True])
def test_decision_service_and_api_warn_of_unknown_options(tmp_path, of_the_api):
    file = tmp_path / "d.conf"
    file.write_text("[acstor_decision]\nremaps = 5\n[acstor_decision_api]\nauth = none\n")
    code = (
        "from acstor_decision import conf as own;"
        "from acstor_decision.api import conf; from oslo_config import cfg;"
        f"{of_the_api} and conf.register_opts(cfg.CONF);"
        f"own.load(['--config-file', {str(file)!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = [line for line in done.stdout.splitlines() if "there is no" in line]
    assert len(found) == 1
    assert "no [acstor_decision] remaps," in found[0]
    assert found[0].endswith("did you mean [acstor_decision] remap?")


def test_listener_accepts_all_auth_options_and_names_unknown_ones(tmp_path):
    file = tmp_path / "g.conf"
    file.write_text(
        "[acstor_glance]\nauth_type = v3applicationcredential\napplication_credential_id = x\n"
        "password = y\nworker = 2\nregion_name = z\ncafile = c\nproject_name = p\n"
    )
    code = (
        "from acstor_glance import conf as glance_conf; from acstor_common.service import conf;"
        "from oslo_config import cfg;"
        f"glance_conf.load(cfg.CONF, ['--config-file', {str(file)!r}], 'l', conf.load)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = [line for line in done.stdout.splitlines() if "there is no" in line]
    assert len(found) == 1
    assert found[0].endswith("there is no [acstor_glance] worker, it is ignored; "
                             "did you mean [acstor_glance] workers?")  # fmt: skip


def test_sections_of_all_services_are_known():
    groups = {
        group.name
        for name in ("acstor.agent", "acstor.decision", "acstor.decision.api", "acstor.glance")
        for point in importlib.metadata.entry_points(group="oslo.config.opts", name=name)
        for group, _options in point.load()()
    }
    ours = {name for name in groups if name.startswith("acstor")}
    assert ours <= unknown_options.OURS


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("20GiB", 20 << 30), ("20G", 20 << 30), ("20 GB", 20 * 10**9), ("1048576", 1 << 20)],
)
def test_size_option_accepts_a_unit(tmp_path, text, size_bytes):
    file = tmp_path / "agent.conf"
    file.write_text(f"[acstor_agent]\ncache_limit_bytes = {text}\n")
    conf = agent.load_conf(["--config-file", str(file)])
    assert conf.acstor_agent.cache_limit_bytes == size_bytes


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        (
            "cache_limit_bytes",
            "20GX",
            "'20GX' is not a size: write bytes, or a number with KiB, MiB",
        ),
        ("cache_limit_bytes", "5", "5 is less than 1MiB"),
        ("read_deadline_s", "soon", "could not convert string to float: 'soon'"),
    ],
)
def test_invalid_value_is_refused_with_its_location_and_an_example(tmp_path, option, value, why):
    file = tmp_path / "agent.conf"
    file.write_text(f"[acstor_agent]\n{option} = {value}\n")
    with pytest.raises(cfg.Error) as caught:
        agent.load_conf(["--config-file", str(file)])
    said = str(caught.value)
    assert said.startswith(f"{file}: [acstor_agent] {option}: {why}"), said
    assert f"For example: {option} = " in said and "LocationInfo" not in said


def test_secret_value_is_not_disclosed(tmp_path):
    file = tmp_path / "some.conf"
    file.write_text("[some]\nport = hidden\n")
    group, option = cfg.OptGroup("some"), cfg.IntOpt("port", secret=True)
    conf, named = cfg.ConfigOpts(), [f"--config-file={file}"]

    def register(found):
        common_conf.register(found, group, [option])

    with pytest.raises(cfg.Error, match=r"\[some\] port") as caught:
        common_conf.read(conf, named, "x", register, [(group, [option])])
    assert "hidden" not in str(caught.value)
