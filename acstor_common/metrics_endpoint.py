# SPDX-License-Identifier: Apache-2.0
"""The Prometheus endpoint of every service: one registry at one address, in a thread of its own."""

from collections.abc import Callable

import prometheus_client

from acstor_common import errors
from acstor_common import ring


def serve(
    address: str, own: prometheus_client.CollectorRegistry, option: str
) -> Callable[[], None]:
    """Start the endpoint; return what stops it.

    :param own: what is shown, beside the process's own figures
    :param option: the option that has the address, for the error
    :raises errors.Unusable: the address cannot be used
    """
    prometheus_client.ProcessCollector(registry=own)
    try:
        host, port = ring.parse_address(address)
        server, thread = prometheus_client.start_http_server(port, host, registry=own)
    except (ValueError, OSError) as e:
        raise errors.Unusable(option, f"{address}: {e}") from e

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
