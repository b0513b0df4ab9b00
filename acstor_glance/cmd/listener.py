# SPDX-License-Identifier: Apache-2.0
"""``acstor-glance-listener``: prepares images that Glance tells of, or that it finds.

It uses the process's global configuration object, because oslo.messaging does.
"""

import signal
import sys
from typing import Any

from oslo_config import cfg

from acstor_common import errors
from acstor_common.service import conf as common_conf
from acstor_common.service import console_script
from acstor_common.service import signals
from acstor_glance import boot_ahead
from acstor_glance import boot_images
from acstor_glance import boot_service
from acstor_glance import boot_ways
from acstor_glance import comparing
from acstor_glance import conf as glance_conf
from acstor_glance import counters as glance_counters
from acstor_glance import guard as glance_guard
from acstor_glance import images as glance_images
from acstor_glance import listener as glance_listener
from acstor_glance import preparer as glance_preparer
from acstor_glance import reconciler as glance_reconciler

PROG = "acstor-glance-listener"


def build(conf: cfg.ConfigOpts) -> tuple[glance_listener.Listener, glance_counters.Counters]:
    """Put the service together.

    :raises errors.Unusable: some option makes no sense
    """
    counters = glance_counters.Counters()
    images = glance_images.connect(conf)
    preparer = glance_preparer.Preparer(images, conf, counters)
    ways = boot_ways.decide(conf)
    counters.show_ways(ways)
    reconciler = glance_reconciler.Reconciler(images, preparer.wanted, builds=ways.builds)
    guard = glance_guard.Guard(conf, images, counters)
    boots = None
    if ways.any:
        built = boot_images.BootImages(images, conf, ways)
        ahead = boot_ahead.BootAhead(images, conf)
        boots = boot_service.BootService(built, ways, counters, lambda: guard.needed, ahead)
    compared = comparing.Comparing(images, conf, counters)
    made = glance_listener.Listener(conf, preparer, reconciler, counters, guard, boots, compared)
    return made, counters


def main() -> int:
    """Run the listener until SIGTERM or SIGINT; return an exit status."""
    try:
        glance_conf.load(cfg.CONF, sys.argv[1:], PROG, common_conf.load)
        signals.install(cfg.CONF.mutate_config_files)
        listener, counters = build(cfg.CONF)
        return run(listener, counters, cfg.CONF.acstor_glance.metrics_listen)
    except (errors.AcstorError, cfg.Error) as exc:
        print(f"{PROG}: {console_script.error_text(exc)}", file=sys.stderr)
        return 1


def run(
    listener: glance_listener.Listener, counters: glance_counters.Counters, metrics_listen: str
) -> int:
    """Serve until a signal comes."""

    def stop(_number: int, _frame: Any) -> None:
        listener.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    stop_metrics = counters.serve(metrics_listen) if metrics_listen else lambda: None
    listener.run()
    stop_metrics()
    return 0


if __name__ == "__main__":
    sys.exit(main())
