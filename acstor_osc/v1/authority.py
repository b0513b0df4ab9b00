# SPDX-License-Identifier: Apache-2.0
"""``openstack acstor authority …``."""

from typing import Any

from osc_lib.cli import format_columns

from acstor_osc import client
from acstor_osc import output_columns


class ShowAuthority(output_columns.ShowOne):
    """Show the certificate authority, the signers and the revoked hosts."""

    def take_action(self, parsed_args: Any) -> Any:
        """Return the fields and their values."""
        found = client.client_of(self).get("/v1/authority")
        shown = {**found, "revoked": format_columns.DictColumn(found["revoked"])}
        for name in ("ca", "signers"):
            if isinstance(shown.get(name), str):
                shown[name] = output_columns.LinesColumn(shown[name])
        return list(shown), list(shown.values())
