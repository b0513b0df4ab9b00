# SPDX-License-Identifier: Apache-2.0
"""A Glance that keeps its images in S3, and acstor's gateway beside it.

The rule: nothing is converted or copied for anybody; what reads images goes through Glance or the
gateway, which have the store's credentials.
"""

import contextlib
from collections.abc import Iterator

from tests.lab.openstack import acstor_gateway
from tests.lab.openstack import cloud
from tests.lab.openstack import ini
from tests.lab.openstack import swift

_DEFAULT: ini.Sections = {"glance_store": {"default_backend": "s3"}}


@contextlib.contextmanager
def images_in_s3(lab: cloud.Cloud) -> Iterator[acstor_gateway.Gateway]:
    """Let Glance put what is uploaded into S3 until the block ends; yield the gateway.

    Keystone's catalog names the gateway.  Glance is restarted, so that it runs already.

    :raises errors.Unusable: a server does not start; shows the end of its log
    """
    objects = swift.Swift(lab.folder, lab.keystone)
    gateway = acstor_gateway.Gateway(lab, lab.folder)
    try:
        objects.start()
        with lab.glance.changed(ini.merged(acstor_gateway.stores(lab, objects, None), _DEFAULT)):
            gateway.start()
            gateway.wait_ready()
            gateway.register()
            yield gateway
    finally:
        gateway.stop()
        objects.stop()
        objects.wipe()
