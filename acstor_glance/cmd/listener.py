# SPDX-License-Identifier: Apache-2.0
"""``acstor-glance-listener``: keeps the artefacts of Glance's images up to date."""

import signal
import sys
from typing import Any

from oslo_config import cfg

from acstor_common.service import conf as common_conf
from acstor_common.service import signals
from acstor_common.service import tracing
from acstor_glance import conf as glance_conf
from acstor_glance import metrics
from acstor_glance.boot import boot_image_announcer
from acstor_glance.boot import boot_image_maker
from acstor_glance.boot import boot_image_service
from acstor_glance.boot import build_modes
from acstor_glance.client import glance_client
from acstor_glance.cmd import command_line
from acstor_glance.controller import image_reconciler
from acstor_glance.controller import listener_service
from acstor_glance.controller import protection_reconciler
from acstor_glance.dedup import base_comparison
from acstor_glance.prepare import image_preparer

PROG = "acstor-glance-listener"


def build(conf: cfg.ConfigOpts) -> tuple[listener_service.ListenerService, metrics.ListenerMetrics]:
    """Create the service and its metrics; raises errors.Unusable for invalid options."""
    counters = metrics.ListenerMetrics()
    images = glance_client.connect(conf)
    preparer = image_preparer.ImagePreparer(images, conf, counters)
    modes = build_modes.choose_modes(conf)
    counters.show_build_modes(modes)
    reconciler = image_reconciler.ImageReconciler(
        images, preparer.desired, builds_boot_images=modes.builds
    )
    protection = protection_reconciler.ProtectionReconciler(conf, images, counters)
    boot_images = None
    if modes.makes_boot_images:
        maker = boot_image_maker.BootImageMaker(images, conf, modes)
        announcer = boot_image_announcer.BootImageAnnouncer(images, conf)
        boot_images = boot_image_service.BootImageService(maker, modes, counters, announcer)
    comparer = base_comparison.BaseComparer(images, conf, counters)
    service = listener_service.ListenerService(
        conf, preparer, reconciler, counters, protection, boot_images, comparer
    )
    return service, counters


def main() -> int:
    """Run the listener until SIGTERM or SIGINT; return an exit status."""

    def start() -> int:
        glance_conf.load(cfg.CONF, sys.argv[1:], PROG, common_conf.load)
        signals.install(cfg.CONF.mutate_config_files)
        tracing.enable(cfg.CONF, "glance-listener")
        listener, counters = build(cfg.CONF)
        return run(listener, counters, cfg.CONF.acstor_glance.metrics_listen)

    return command_line.run_command(PROG, start, "stopped", cfg.Error)


def run(
    listener: listener_service.ListenerService,
    counters: metrics.ListenerMetrics,
    metrics_listen: str,
) -> int:
    """Run the listener and the metrics endpoint until a signal arrives."""

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
