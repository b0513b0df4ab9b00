# SPDX-License-Identifier: Apache-2.0
"""A message bus in memory, configured as for oslo.messaging."""

import contextlib
from collections.abc import Iterator

import oslo_messaging
from oslo_config import cfg

from acstor_common.wire import message_bus


@contextlib.contextmanager
def transport() -> Iterator[oslo_messaging.Transport]:
    """Open a transport for the block."""
    cfg.CONF([], project="acstor", default_config_files=[], default_config_dirs=[])
    made = message_bus.open_transport(
        cfg.CONF, lambda conf: oslo_messaging.get_rpc_transport(conf, "kombu+memory:////")
    )
    yield made
    made.cleanup()
    cfg.CONF.reset()
