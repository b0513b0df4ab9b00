# SPDX-License-Identifier: Apache-2.0
"""Output of commands: control characters are replaced for people and kept for programs."""

import argparse
import io
import json
import types

import pytest
from osc_lib.cli import format_columns

from acstor_osc import output_columns

EVIL = "a\n\x1b[2J\u202eb"
SAFE = "a??[2J?b"


class _List(output_columns.Lister):
    def take_action(self, parsed_args):
        return ["Name", "Of"], [[EVIL, format_columns.DictColumn({EVIL: EVIL})]]


class _Show(output_columns.ShowOne):
    def take_action(self, parsed_args):
        return ["name", "of"], [EVIL, format_columns.ListColumn([EVIL])]


@pytest.mark.parametrize("kind", [_List, _Show])
def test_control_characters_are_replaced_only_in_human_readable_output(kind):
    def run(*argv):
        app = types.SimpleNamespace(stdout=io.StringIO(), client_manager=None)
        made = kind(app, argparse.Namespace())
        made.run(made.get_parser("x").parse_args(argv))
        return app.stdout.getvalue()

    people = run()
    assert people.count(SAFE) >= 2
    assert all(line.isprintable() for line in people.split("\n"))
    assert json.dumps(EVIL) in run("-f", "json")
