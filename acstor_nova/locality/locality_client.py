# SPDX-License-Identifier: Apache-2.0
"""Client of the decision service's REST API for the locality of images, as Nova's service user."""

import logging
from typing import Any

import msgspec
from keystoneauth1 import loading
from oslo_config import cfg

from acstor_common import errors
from acstor_common.model import ids
from acstor_common.service import bounded_responses
from acstor_common.util import log_once
from acstor_common.wire import decision_messages
from acstor_nova import decision_client

LOG = logging.getLogger(__name__)

GROUP = "service_user"  # Nova's option group with the user of its services
WITHIN_S = 5.0  # deadline of each request, to Keystone and to the API


class LocalityClient:
    """Client with one session, for one thread, by Nova's configuration."""

    def __init__(self, conf: cfg.ConfigOpts, within_s: float = WITHIN_S) -> None:
        self._conf, self._within_s = conf, within_s
        self._url = conf.acstor.decision_url.rstrip("/")
        self._session: Any = None
        self._transport = log_once.LogOnce(LOG)

    def get_locality(self, image_id: str) -> decision_messages.ImageLocality:
        """Return the hosts that have data of an image, or raise DecisionUnreachable."""
        url = f"{self._url}/v1/images/{image_id}/locality"
        with decision_client.translated_errors(url):
            ids.parse_image_id(image_id)
            answer = self._opened(url).get(
                url,
                timeout=self._within_s,
                verify=self._conf.acstor.ca_file or True,
                redirect=False,
                raise_exc=False,
            )
            if answer.status_code != 200:
                why = decision_client.fault_text(answer.status_code, answer.content)
                raise errors.DecisionUnreachable(url, why)
            found = msgspec.json.decode(answer.content, type=decision_messages.ImageLocality)
        if found.image_id != image_id:
            raise errors.DecisionUnreachable(url, f"the answer is about image {found.image_id}")
        return found

    def _opened(self, url: str) -> Any:
        if self._session is None:
            auth = loading.load_auth_from_conf_options(self._conf, GROUP)
            if auth is None:
                raise errors.DecisionUnreachable(url, f"[{GROUP}] auth_type is not set")
            session = loading.load_session_from_conf_options(self._conf, GROUP, auth=auth)
            bounded_responses.bound(session, within_s=self._within_s)
            self._transport.log_warning(decision_messages.why_insecure(self._url))
            self._session = session
        return self._session
