# SPDX-License-Identifier: Apache-2.0
"""A weigher of nova-scheduler: hosts that have a server's image weigh more.

Nova normalizes weights from the smallest to the largest of a request, so the smallest difference
would count as much as the largest. This weigher fixes its range instead (``minval``, ``maxval``): a
host with the complete image, an idle link and no build counts as 1, one that has nothing of the
image as 0, whatever the others have. Nova's weighers for memory, processors and disk count free
resources from 0 to the most, so a host that is fuller by a tenth loses a tenth of each. The
multipliers decide how much fuller a host may become because it has the image.
"""

import logging
import os
from collections.abc import Sequence
from typing import Any

import nova.conf
from nova.scheduler import utils
from nova.scheduler import weights

from acstor_common.util import log_once
from acstor_nova import conf as nova_conf
from acstor_nova.locality import host_weight
from acstor_nova.locality import locality_cache
from acstor_nova.locality import locality_client

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF
MULTIPLIER = "image_locality_weight_multiplier"
"""Option in [acstor], and key in the metadata of an aggregate."""


class ImageLocalityWeigher(weights.BaseHostWeigher):  # type: ignore[misc]
    """Weighs hosts by the part of the image that they have; without an answer, each weighs 0."""

    minval = 0.0
    maxval = 1.0

    def __init__(self) -> None:
        nova_conf.register_opts(CONF)
        self._multiplier: float = CONF.acstor[MULTIPLIER]
        self._trouble = log_once.LogOnce(LOG)
        self._cache: locality_cache.LocalityCache | None = None
        self._process = 0

    def weight_multiplier(self, host_state: Any) -> float:
        """Return the multiplier of a host: that of its aggregates, or else the option's."""
        if not host_state.aggregates:
            return self._multiplier
        found: float = utils.get_weight_multiplier(host_state, MULTIPLIER, self._multiplier)
        return found

    def weigh_objects(self, weighed_obj_list: Sequence[Any], weight_properties: Any) -> list[float]:
        """Return the weight of each host for a request, from 0 to 1."""
        try:
            self._multiplier = CONF.acstor[MULTIPLIER]  # a reload may have changed it
            table = self._table_of(weight_properties)
            if table:
                hosts = (one.obj for one in weighed_obj_list)
                return [
                    host_weight.weight_of(table.get(host.host), host.num_io_ops) for host in hosts
                ]
        except Exception as e:
            self._trouble.log_warning(f"hosts are not weighed by their images: {e!r}")
        return [0.0] * len(weighed_obj_list)

    def _weigh_object(self, obj: Any, weight_properties: Any) -> float:
        return self.weigh_objects([weights.WeighedHost(obj, 0.0)], weight_properties)[0]

    def _table_of(self, spec: Any) -> host_weight.LocalityTable | None:
        image_id = image_of(spec)
        if image_id is None:
            return None
        if not CONF.acstor.decision_url:
            self._trouble.log_warning("[acstor] decision_url is empty: images have no weight")
            return None
        return self._own_cache().lookup(image_id)

    def _own_cache(self) -> locality_cache.LocalityCache:
        """Return the cache of this process: the weigher is made before workers are forked."""
        if self._cache is None or self._process != os.getpid():
            client = locality_client.LocalityClient(CONF)
            self._cache = locality_cache.LocalityCache(client.get_locality)
            self._process = os.getpid()
        return self._cache


def image_of(spec: Any) -> str | None:
    """Return the image of a request's server; None for a server on a volume."""
    if "is_bfv" in spec and spec.is_bfv:
        return None
    image = spec.image if "image" in spec else None
    return image.id if image is not None and "id" in image else None
