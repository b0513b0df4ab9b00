# SPDX-License-Identifier: Apache-2.0
import logging

import pytest

from acstor_common.util import log_once


@pytest.mark.expect_log("^no route$")
@pytest.mark.expect_log("^no broker: 100 %s$")
def test_fault_is_logged_once_until_it_changes(watched_log):
    fault = log_once.LogOnce(logging.getLogger("acstor_common"))
    for what in ("", "no route", "no route", "no broker: 100 %s", "no broker: 100 %s", "", ""):
        fault.log_warning(what)
    assert [text for _, text in watched_log.messages] == ["no route", "no broker: 100 %s"]
    fault.log_warning("no broker: 100 %s")
    assert len(watched_log.messages) == 3
