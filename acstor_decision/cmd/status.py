# SPDX-License-Identifier: Apache-2.0
"""``acstor-status upgrade check``: checks that the service can start or upgrade.

Exit status 0: all is well; 1: a warning; 2: a failure; 255: the checks could not run.
"""

import logging
import sys

from oslo_config import cfg
from oslo_upgradecheck import upgradecheck

from acstor_common import errors
from acstor_common.service import console_script
from acstor_decision import conf as decision_conf
from acstor_decision import upgrade_checks
from acstor_decision.api import conf as api_conf

PROG = "acstor-status"
NOT_LOOKED_AT = 255


def main() -> int:
    """Run the command line; return an exit status."""
    logging.disable(logging.WARNING)  # the checks report what libraries would log
    conf = cfg.CONF
    decision_conf.register_opts(conf)
    api_conf.register_opts(conf)
    files = cfg.find_config_files("acstor", "acstor-decision")
    checks = upgrade_checks.Checks(conf)
    try:
        found = upgradecheck.main(conf, "acstor", checks, sys.argv[1:], files)
    except (cfg.Error, errors.Unusable) as e:
        print(f"{PROG}: {console_script.error_text(e)}", file=sys.stderr)
        return NOT_LOOKED_AT
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
