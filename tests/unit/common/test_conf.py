# SPDX-License-Identifier: Apache-2.0
from oslo_config import cfg

from acstor_common import conf as common_conf


def test_what_is_set_in_one_object_is_not_seen_in_others():
    first, second = cfg.ConfigOpts(), cfg.ConfigOpts()
    for one in (first, second):
        common_conf.register_opts(one)
        one([], default_config_files=[], default_config_dirs=[])
    first.set_override("mount_point", "/elsewhere", common_conf.GROUP.name)
    assert first.acstor.mount_point == "/elsewhere"
    assert second.acstor.mount_point == "/var/lib/acstor/mirror"
