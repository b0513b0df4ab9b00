# SPDX-License-Identifier: Apache-2.0
"""``openstack acstor …``: commands for the REST API of the decision service."""
