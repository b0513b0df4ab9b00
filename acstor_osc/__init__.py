# SPDX-License-Identifier: Apache-2.0
"""``openstack acstor …``: commands that ask the decision service's REST API."""
