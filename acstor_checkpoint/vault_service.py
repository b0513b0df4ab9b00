# SPDX-License-Identifier: Apache-2.0
"""Builds and serves this host's vault from its options."""

import contextlib
import pathlib
import threading
from collections.abc import Iterator

from oslo_config import cfg

from acstor_checkpoint.vault import authorized_hosts
from acstor_checkpoint.vault import quota
from acstor_checkpoint.vault import scrubber
from acstor_checkpoint.vault import vault_api
from acstor_checkpoint.vault import vault_files
from acstor_checkpoint.vault import vault_server
from acstor_checkpoint.vault import vault_store
from acstor_checkpoint.vault_protocol import tls_channel
from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import credentials
from acstor_common.identity import identity_files
from acstor_common.model import addresses
from acstor_common.model import ids
from acstor_common.service import conf as common_conf
from acstor_common.util import supervision

_ENDS_WITHIN_S = 10.0

Options = cfg.ConfigOpts.GroupAttr


def host_of(agent: Options) -> ids.HostId:
    """Return this host's id from the options of its agent, or raise Unusable."""
    try:
        return ids.parse_host_id(agent.host)
    except ValueError as e:
        raise errors.Unusable("[acstor_agent] host", str(e)) from e


def open_identity(agent: Options) -> identity_files.IdentityFiles:
    """Return this host's certificate and key files by its agent's options, or raise Unusable."""
    folder = common_conf.identity_dir(agent)
    return identity_files.IdentityFiles(host_of(agent), identity_files.files_in(folder))


def load_credentials(files: identity_files.IdentityFiles) -> credentials.Credentials:
    """Return the credentials for vaults and their clients."""
    made = credentials.Credentials(files, tls_channel.PROTOCOL, certificates.GRACE_S)
    made.reload_files()
    return made


@contextlib.contextmanager
def serve_vault(
    own: Options,
    host: ids.HostId,
    own_credentials: credentials.Credentials,
    hosts: authorized_hosts.AuthorizedHosts,  # may use the vault
) -> Iterator[vault_store.VaultStore | None]:
    """Serve the vault during the block, or raise Unusable; yield None without ``vault_listen``."""
    if not own.vault_listen:
        yield None
        return
    folder = pathlib.Path(own.vault_dir)
    limits = quota.limits(own.vault_limit_bytes, own.vault_quota_per_host_bytes)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(vault_files.locked(folder))
            vault = vault_store.VaultStore(folder, limits, host)
        except OSError as e:
            raise errors.Unusable(f"[acstor_checkpoint] vault_dir {folder}", str(e)) from e
        stack.callback(vault.close)
        server = _server(own.vault_listen, vault_api.VaultApi(vault), own_credentials, hosts)
        ended = threading.Event()
        scrubbing = scrubber.Scrubber(vault, ended)
        for name, loop, end in (
            ("vault", server.serve, server.close),
            ("scrubbing", scrubbing.run, ended.set),
        ):
            thread = supervision.start(name, loop, ended)
            stack.callback(thread.join, _ENDS_WITHIN_S)
            stack.callback(end)
        yield vault


def _server(
    listen: str,
    api: vault_api.VaultApi,
    own_credentials: credentials.Credentials,
    hosts: authorized_hosts.AuthorizedHosts,
) -> vault_server.VaultServer:
    try:
        sock = vault_server.listen(*addresses.parse(listen))
    except (OSError, ValueError) as e:
        raise errors.Unusable("[acstor_checkpoint] vault_listen", f"{listen}: {e}") from e
    return vault_server.VaultServer(sock, api, own_credentials, hosts)
