# SPDX-License-Identifier: Apache-2.0
"""Paging, sorting, filters and long columns of lists."""

import pytest

from acstor_osc.v1 import host
from acstor_osc.v1 import image
from acstor_osc.v1 import ring
from acstor_osc.v1 import traffic
from tests.unit.osc import test_commands as commands

manager, run, sdk = commands.manager, commands.run, commands.sdk


def names(answer):
    return [row["Host"] for row in commands.table(answer)]


def test_hosts_are_paged_sorted_and_filtered_by_the_service(run):
    assert names(run(host.ListHost, "--limit", "1", "--marker", "h0000")) == ["h0001"]
    assert names(run(host.ListHost, "--sort", "host:desc", "--limit", "2")) == ["h0002", "h0001"]
    assert names(run(host.ListHost, "--location", "pod1/rack2")) == ["h0002"]
    assert names(run(host.ListHost, "--state", "silent")) == []
    assert names(run(host.ListHost, "--enrolment", "none", "--state", "up", "--limit", "1")) == [
        "h0000"
    ]


def test_long_lists_append_columns(run, store, glance):
    glance.add(commands.IMAGE)
    commands.hold(store)
    for command, argv, more in (
        (host.ListHost, (), host.LONG),
        (image.ListImage, (), image.LONG),
        (image.ListImageHost, (commands.IMAGE,), ()),
    ):
        usual, longer = run(command, *argv), run(command, *argv, "--long")
        assert longer[0][: len(usual[0])] == usual[0] and len(longer[0]) > len(usual[0])
        assert longer[0][len(usual[0]) :] == [title for title, _ in more] or not more
        assert [len(row) for row in longer[1]] == [len(longer[0])] * len(usual[1])


def test_lists_without_paging_in_the_api_are_paged_by_the_client(run, store, glance):
    glance.add(commands.IMAGE)
    commands.hold(store)
    for command, argv in ((image.ListImageHost, (commands.IMAGE,)), (ring.ListRingOwner, ())):
        assert names(run(command, *argv)) == ["h0000", "h0001", "h0002"]
        assert names(run(command, *argv, "--limit", "1", "--marker", "h0000")) == ["h0001"]
        assert names(run(command, *argv, "--marker", "h0002")) == []


@pytest.mark.parametrize(
    ("command", "argv", "said"),
    [
        (host.ListHost, ("--limit", "-1"), "not a number from 1 to 10000: '-1'"),
        (host.ListHost, ("--sort", "colour"), "not one of host, state, location"),
        (host.ListHost, ("--sort", "load:up"), "with :asc or :desc: 'load:up'"),
        (host.ListHost, ("--state", "well"), "invalid choice: 'well'"),
        (image.ListImage, ("--limit", "many"), "not a number from 1 to 1000: 'many'"),
        (ring.ListRing, ("--marker", "first"), "not a number from 1 to"),
        (traffic.ListTraffic, ("--last", "ever"), "as 90s or 2h: 'ever'"),
    ],
)
def test_invalid_option_value_is_refused_with_the_valid_ones(command, argv, said, run, capsys):
    with pytest.raises(SystemExit):
        run(command, *argv)
    assert said in capsys.readouterr().err
