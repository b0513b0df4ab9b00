# SPDX-License-Identifier: Apache-2.0
"""Validates options and derives values from them; errors name the option."""

import grp
import ipaddress
import logging
import math

from oslo_config import cfg

from acstor_agent import policies
from acstor_agent.core.boot import boot_memory
from acstor_agent.core.images import readahead
from acstor_agent.engine import settings
from acstor_agent.engine_io import exchange
from acstor_agent.images.boot import boot_recording
from acstor_agent.peers import peer_network
from acstor_agent.peers import traffic_control
from acstor_agent.runtime import disk_io
from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import identity_files
from acstor_common.model import addresses
from acstor_common.model import geometry
from acstor_common.model import ids
from acstor_common.service import conf

LOG = logging.getLogger(__name__)

INSECURE = (
    "anyone who reaches this host's port can read chunks and learns the hosts of the v-node "
    "table; nothing is encrypted or authenticated"
)
HOW_TO_GET_A_CERTIFICATE = (
    "Enrol this host at the decision service, or put ca.pem, cert.pem and key.pem into the folder "
    "identity of state_dir or into identity_dir; on a network without other users, set "
    "peer_security = insecure"
)
MBIT_BYTES = 125_000
LARGEST_GID = 2**32 - 2  # the one above means no group (chown(2))
CONTROL_GROUP = "acstor"  # created by etc/sysusers.d, with the member nova
MIRROR_GROUP = "kvm"
"""Default group that may read mirrors. systemd creates it on every host; the packages of libvirt
and nova-compute add the users of QEMU and Nova."""

REPLY_TIMEOUT_S = 30.0
"""Longest wait of a look-up for the chunk map of an image that is not open; Nova waits 45 s."""

READ_AHEAD_LIMIT_BYTES = 8 * geometry.MIB
"""Limit of readahead for a sequential reader: what 10 Gbit/s carry in 6 ms. A reader of less than
720 MiB in order has a lower limit, a share of that."""

RUN_CHUNKS = 16  # chunks of one request: what FUSE asks for at a time, at the default chunk size
COPIES_LIMIT = 16
"""Copies of a chunk above which its home hints at evictions: enough that the chunk stays available
when some of them go, are busy, or are evicted without a hint."""

PEER_SILENCE_S = 5.0
"""Longest silence of a peer that owes Hello or chunks before the next provider is asked. A working
peer sends four keepalives in it, and a packet that was lost several times in a row arrives."""

PROVIDER_SHARE = 1 / 3  # of a read's deadline for one provider: leaves time for two others

VARIANTS = "[acstor_agent] variants"  # an option that no document for operators names

Options = cfg.ConfigOpts.GroupAttr  # the group ``[acstor_agent]``


def read_deadline_s(own: Options) -> float:
    """Return the longest wait of a guest's read; infinite without a deadline."""
    return float(own.read_deadline_s) or math.inf


def reply_timeout_s(own: Options) -> float:
    """Return the longest wait of a request that fails afterwards, such as a look-up."""
    return min(read_deadline_s(own), REPLY_TIMEOUT_S)


def provider_timeout_s(own: Options) -> float:
    """Return the longest time that one provider may take for a guest's read."""
    return (float(own.read_deadline_s) or REPLY_TIMEOUT_S) * PROVIDER_SHARE


def check(own: Options) -> None:
    """Raise Unusable for an invalid address, group or variant, before there is a mount."""
    load_policies(own)
    for name in ("peer_listen", "metrics_listen"):
        if address := own[name]:
            try:
                addresses.parse(address)
            except ValueError as e:
                raise errors.Unusable(f"[acstor_agent] {name}", f"{address}: {e}") from e
    for name in ("control_group", "mirror_group"):
        if group := own[name]:
            try:
                group_id(group)
            except KeyError as e:
                what = f"[acstor_agent] {name}"
                raise errors.Unusable(what, f"there is no group {group}") from e


def group_id(group: str) -> int:
    """Return the number of a group, given by name or number, or raise KeyError."""
    if not group.isdecimal():
        return grp.getgrnam(group).gr_gid
    if int(group) > LARGEST_GID:
        raise KeyError(group)
    return int(group)


def control_gid(own: Options, default: str = CONTROL_GROUP) -> int | None:
    """Return the group that may use the control socket; None: the agent's user alone."""
    try:
        return group_id(own.control_group or default)
    except KeyError:
        return None


def mirror_gid(own: Options) -> int:
    """Return the group that may read mirrors: that of the users who run QEMU."""
    try:
        return group_id(own.mirror_group or MIRROR_GROUP)
    except KeyError:
        return 0


def disk_policy(chosen: str, folder: str) -> str:
    """Return the disk policy for a folder; ``auto`` chooses by its device."""
    return disk_io.policy_for(folder) if chosen == disk_io.AUTO else chosen


def load_policies(own: Options) -> policies.Policies:
    """Return the policies with the variants; raise Unusable if they are unknown or conflict."""
    try:
        return policies.load(tuple(own.variants))
    except ValueError as e:
        raise errors.Unusable(VARIANTS, str(e)) from e


def make_read_ahead(own: Options, source: readahead.Source) -> readahead.Predictor:
    """Return the readahead policy for the images of a source."""
    make = load_policies(own).read_ahead
    return make(READ_AHEAD_LIMIT_BYTES, source) if make else readahead.ReadAhead(0)


def fill_rate_bytes_s(own: Options) -> float:
    """Return the limit of background fills in bytes/s."""
    return float(own.fill_rate_limit_mbit * MBIT_BYTES) or math.inf


def boot_memory_of(own: Options) -> boot_memory.BootMemory:
    """Return the memory for boot images while guests boot."""
    limit_bytes: int = own.boot_memory_limit_bytes
    return boot_memory.BootMemory(limit_bytes, boot_memory.IDLE_S, boot_memory.LONGEST_S)


def boot_limits(own: Options) -> boot_recording.RecordingLimits:
    """Return the limits of recorded boots."""
    longest_s = boot_recording.LONGEST_S if own.boot_memory_limit_bytes else 0.0
    return boot_recording.RecordingLimits(longest_s, boot_recording.IDLE_S, boot_recording.BOOTS)


def host_id(text: str) -> ids.HostId:
    """Return the name of this host, or raise Unusable if it is not a valid host ID."""
    try:
        return ids.parse_host_id(text)
    except ValueError as e:
        raise errors.Unusable("[acstor_agent] host", str(e)) from e


def reachable_at(own: Options) -> str:
    """Return the address for other hosts, or raise Unusable if they cannot use it."""
    address: str = own.peer_listen
    try:
        ip, _ = addresses.parse(address)
    except ValueError as e:
        raise errors.Unusable("[acstor_agent] peer_listen", str(e)) from e
    if fault := addresses.why_unreachable(ip):
        raise errors.Unusable(
            "[acstor_agent] peer_listen",
            f"other hosts cannot connect to {address}: it is {fault}",
            "Set it to the address and port under which they reach this host",
        )
    return address


def make_identity_files(own: Options, host: ids.HostId) -> identity_files.IdentityFiles:
    """Return the files of this host's identity."""
    return identity_files.IdentityFiles(host, identity_files.files_in(conf.identity_dir(own)))


def exchange_settings(
    own: Options, *, has_others: bool, max_source_reads: int
) -> settings.Settings:
    """Return the engine's settings; see :class:`acstor_agent.engine.settings.Settings`."""
    chosen = load_policies(own)
    return settings.Settings(
        timeout_s=provider_timeout_s(own),
        background_limit=exchange.MAX_PREFETCHES,
        copies_limit=COPIES_LIMIT if chosen.gives_copy_hints else 0,
        lost_after_s=own.lost_after_s,
        has_others=has_others,
        topology=chosen.topology,
        may_hedge=chosen.may_hedge,
        lockstep=chosen.lockstep_scheme,
        may_ask_source_first=chosen.may_ask_source_first,
        homes_keep=chosen.homes_keep,
        run_chunks=RUN_CHUNKS,
        max_source_reads=max_source_reads,
        may_refer=chosen.may_refer,
    )


def peer_limits() -> peer_network.PeerLimits:
    """Return the limits of connections with peers."""
    return peer_network.PeerLimits(hello_s=PEER_SILENCE_S, silence_s=PEER_SILENCE_S)


def peer_traffic(own: Options) -> traffic_control.TrafficControl:
    """Return the rate limits and the mark of traffic with peers."""
    upload, download = own.peer_upload_limit_mbit, own.peer_download_limit_mbit
    return traffic_control.TrafficControl(
        traffic_control.TrafficLimiter(upload * MBIT_BYTES or math.inf),
        traffic_control.TrafficLimiter(download * MBIT_BYTES or math.inf),
        own.peer_background_dscp,
    )


def peer_security(own: Options) -> peer_network.SecurityMode:
    """Return the security mode for peers: by default insecure only on a loopback address.

    :raises errors.Unusable: ``peer_listen`` is invalid
    """
    if own.peer_security is not None:
        return peer_network.SecurityMode(own.peer_security)
    try:
        ip, _ = addresses.parse(own.peer_listen)
    except ValueError as e:
        raise errors.Unusable("[acstor_agent] peer_listen", f"{own.peer_listen}: {e}") from e
    is_alone = ipaddress.ip_address(ip).is_loopback
    return peer_network.SecurityMode.INSECURE if is_alone else peer_network.SecurityMode.SECURE


def peer_credentials(
    own: Options, identity_: identity_files.IdentityFiles, *, may_come_later: bool = False
) -> peer_network.Credentials | None:
    """Return the credentials for peers, None if insecure; raise Unusable without a certificate.

    :param may_come_later: a certificate can be requested; until then peers are not contacted
    """
    security = peer_security(own)
    if security is peer_network.SecurityMode.INSECURE:
        if own.peer_security is not None:
            LOG.warning("[acstor_agent] peer_security = insecure: %s", INSECURE)
        return None
    made = peer_network.Credentials(identity_, security, certificates.GRACE_S)
    made.reload_files()
    if not made.has_certificate and not may_come_later:
        files = ", ".join(str(path) for path in identity_.files[:3])
        why = f"{security.value} needs a certificate of this host that can be used in {files}"
        raise errors.Unusable("[acstor_agent] peer_security", why, HOW_TO_GET_A_CERTIFICATE)
    return made
