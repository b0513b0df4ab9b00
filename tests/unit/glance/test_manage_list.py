# SPDX-License-Identifier: Apache-2.0
"""Output of ``acstor-glance-manage list`` for names that tenants chose."""

import argparse
import json

import pytest

from acstor_glance.cmd import manage
from tests.fakes import glance_options
from tests.fakes import memory_images

EVIL = "a\x1b]52;c;cm0=\x07\nimage 7d2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a11  state ready\u202e"


@pytest.mark.parametrize("is_json", [False, True])
def test_control_characters_in_image_names_are_replaced(tmp_path, capsys, is_json):
    images = memory_images.MemoryImages()
    images.add(b"x" * 65536, name=EVIL)
    tool = manage.Tool.__new__(manage.Tool)
    tool._conf, tool._images = glance_options.conf(state_dir=tmp_path), images
    tool._options = argparse.Namespace(json=is_json, images=[])
    assert tool.show() == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.isprintable()
    if is_json:
        assert json.loads(line)["name"] == EVIL
    else:
        assert "  name a?]52;c;cm0=??image " in line
