# SPDX-License-Identifier: Apache-2.0
"""acstor's gateway beside the lab's Glance, with Glance's store configuration.

It runs in the virtualenv of Glance, which has the libraries of the stores.
"""

import contextlib
import json
import pathlib
import shutil
import time
import urllib.request
from collections.abc import Iterator
from collections.abc import Mapping

from prometheus_client import parser

from acstor_common.service import metrics_endpoint
from tests.lab import tuned
from tests.lab.openstack import accounts
from tests.lab.openstack import acstor_glance
from tests.lab.openstack import api
from tests.lab.openstack import ceph
from tests.lab.openstack import cloud
from tests.lab.openstack import daemon
from tests.lab.openstack import ini
from tests.lab.openstack import swift

SERVICE_TYPE = "acstor-gateway"
APPLICATIONS = pathlib.Path(__file__).resolve().parents[1] / "wsgi"


class Gateway(api.Api):
    """The gateway under a WSGI server.

    :param constants: that differ from the product's
    :param changed: options of [acstor_gateway]
    """

    module = "acstor_glance.gateway.wsgi"
    conf_name = "acstor-gateway.conf"
    more_arguments = ("--socket-timeout", "180")  # as in the unit: deltas arrive with pauses

    def __init__(
        self,
        lab: cloud.Cloud,
        folder: pathlib.Path,
        *,
        constants: tuned.Constants | None = None,
        **changed: object,
    ) -> None:
        super().__init__("acstor-glance-gateway", folder)
        self._constants = constants or {}
        if self._constants:
            self.module = "tuned_gateway"
            self.more_arguments = (*self.more_arguments, "--pythonpath", str(APPLICATIONS))
        self._lab = lab
        self._numbers = folder / "gateway-metrics"
        port = daemon.port_of(folder, "acstor-gateway-metrics")
        self.metrics = f"{daemon.LOOPBACK}:{port}"
        web = {
            "internal_web_networks": f"{daemon.LOOPBACK}/32"
        }  # the network of the tests' web servers
        self._options = {"metrics_listen": self.metrics, **web, **changed}

    def configure(self) -> None:
        """Write its configuration, and reset its counters."""
        shutil.rmtree(self._numbers, ignore_errors=True)
        self._numbers.mkdir(parents=True)
        super().configure()

    def sections(self) -> ini.Sections:
        """Return its configuration besides Glance's."""
        return {
            "acstor_glance": acstor_glance.options(self._lab, self.folder / "state"),
            "acstor_gateway": self._options,
        }

    def environment(self) -> Mapping[str, str]:
        """Return the environment with its configuration's and counters' paths."""
        return {
            "ACSTOR_GATEWAY_CONF": f"{self._lab.glance.conf_file}:{self.conf_file}",
            "PROMETHEUS_MULTIPROC_DIR": str(self._numbers),
            tuned.VARIABLE: json.dumps(dict(self._constants)),
        }

    def counted(self, name: str, **labels: str) -> float:
        """Return the current value of one of its Prometheus counters."""
        time.sleep(metrics_endpoint.KEPT_S)  # until a cached response expires
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10) as answer:
            families = parser.text_string_to_metric_families(answer.read().decode())
            for sample in (sample for family in families for sample in family.samples):
                if sample.name == f"acstor_gateway_{name}" and sample.labels == labels:
                    return float(sample.value)
        return 0.0

    def register(self) -> None:
        """Set it in Keystone's catalog."""
        accounts.name_service(
            self._lab.connect().identity, SERVICE_TYPE, "acstor-gateway", self.url
        )


@contextlib.contextmanager
def running(lab: cloud.Cloud, **changed: object) -> Iterator[Gateway]:
    """Run a gateway beside a cloud for the block; ``changed``: see :class:`Gateway`."""
    beside = Gateway(lab, lab.folder, **changed)
    try:
        beside.start()
        beside.wait_ready()
        yield beside
    finally:
        beside.stop()


def stores(lab: cloud.Cloud, objects: swift.Swift, cluster: ceph.Ceph | None) -> ini.Sections:
    """Return Glance's configuration of a store of each kind besides its files.

    Swift stores objects above 2 MiB in segments.
    """
    project_id = lab.session("glance").get_project_id()
    enabled = "fs:file,s3:s3,swift:swift,web:http"
    if cluster:
        enabled += ",rbd:rbd"
    return {
        **(cluster.store() if cluster else {}),
        "DEFAULT": {"enabled_backends": enabled},
        # For HTTP locations: Glance refuses those on the loopback by default.
        "import_filtering_opts": {"allowed_ports": "[]", "allowed_hosts": "[127.0.0.1]"},
        "s3": {
            "s3_store_host": objects.s3_url,
            "s3_store_access_key": swift.S3_USER,
            "s3_store_secret_key": api.PASSWORD,
            "s3_store_bucket": "images",
            "s3_store_create_bucket_on_put": True,
            "s3_store_bucket_url_format": "path",
            "s3_store_large_object_size": 8,
            "s3_store_large_object_chunk_size": 5,
        },
        "swift": {
            "swift_store_auth_version": "3",
            "swift_store_auth_address": lab.keystone.auth_url,
            "swift_store_user": "service:glance",
            "swift_store_key": api.PASSWORD,
            "swift_store_endpoint": objects.url(str(project_id)),
            "swift_store_create_container_on_put": True,
            "swift_store_large_object_size": 2,
            "swift_store_large_object_chunk_size": 1,
        },
    }
