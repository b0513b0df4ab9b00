# SPDX-License-Identifier: Apache-2.0
"""The certificate authority on SQLite, with a manual clock."""

import contextlib
import threading
from typing import Any

import pytest
from cryptography.x509 import oid

from acstor_common import errors
from acstor_common.identity import certificates
from acstor_common.identity import signing
from acstor_common.model import ids
from acstor_common.wire import signed_messages
from acstor_decision.core import enrolment_rules
from acstor_decision.db import database
from acstor_decision.identity import certificate_authority
from acstor_decision.identity import trust_state
from tests.fakes import cloud_keys
from tests.fakes import manual_clock
from tests.unit.decision.api import conftest as samples

DAY_S = 86400
H1, H2 = ids.HostId("h1"), ids.HostId("h2")


class Cloud:
    """A certificate authority and its hosts."""

    def __init__(self, conf: Any, store: database.Database, **limits: Any) -> None:
        self.now_s = 1_800_000_000.0
        self.store, self._own = store, conf.acstor_decision
        self.limit(**limits)
        self.keys = {H1: certificates.new_key(), H2: certificates.new_key()}

    def limit(self, **limits: Any) -> None:
        """Replace the authority by one with other limits."""
        self.keeper = certificate_authority.CertificateAuthority(
            self._own,
            self.store,
            manual_clock.FunctionClock(lambda: self.now_s),
            enrolment_rules.EnrolmentLimits(**limits),
        )

    def enrol(
        self, host: ids.HostId = H1, user: str = "u", key: bytes = b"", proof_by: bytes = b""
    ) -> certificate_authority.IssuedCertificate:
        self.now_s += 2
        csr = certificates.request(host, key or self.keys[host])
        proof = signed_messages.signature_of(signing.RENEWAL, csr, proof_by) if proof_by else ""
        return self.keeper.enrol_host(host, user, "10.0.0.1", csr, proof)

    def read(
        self, issued: certificate_authority.IssuedCertificate, ca: bytes = b""
    ) -> certificates.HostCertificate:
        return certificates.read_host_certificate(
            issued.certificate, ca or self.keeper.authority_chain()
        )

    def fault(self, issued: certificate_authority.IssuedCertificate) -> str:
        return self.keeper.load_trust_state().why_untrusted(
            self.read(issued, issued.ca), self.now_s
        )


@pytest.fixture
def cloud(configure, store) -> Cloud:
    return Cloud(configure(), store)


def refused(cloud: Cloud, verdict: enrolment_rules.Verdict | None, **asked: Any) -> str:
    with pytest.raises(enrolment_rules.EnrolmentRefused) as caught:
        cloud.enrol(**asked)
    assert caught.value.verdict is verdict
    return str(caught.value)


V = enrolment_rules.Verdict


def test_host_gets_certificate_ca_and_signers(cloud):
    issued = cloud.enrol()
    read = cloud.read(issued, issued.ca)
    assert read.host == H1 and cloud.fault(issued) == ""
    assert read.not_after_s == issued.not_after_s == int(issued.now_s) + DAY_S
    assert signing.read_public_keys(issued.signers)
    certificates.read_host_certificate(cloud.enrol(H2).certificate, issued.ca)


def test_concurrent_instances_create_one_set_of_keys(configure, tmp_path):
    stores = [database.Database(configure()) for _ in range(8)]
    stores[0].upgrade()
    keepers = [
        certificate_authority.CertificateAuthority(configure().acstor_decision, store)
        for store in stores
    ]
    together = threading.Barrier(len(keepers))
    found = []

    def start(keeper: certificate_authority.CertificateAuthority) -> None:
        together.wait(30)
        found.append((keeper.load_trust_state().signer, keeper.issuing_authority().key_pem))

    threads = [threading.Thread(target=start, args=(keeper,)) for keeper in keepers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 8 and len(set(found)) == 1
    assert len(stores[0].authority_keys(certificate_authority.CA)) == 1
    for store in stores:
        store.close()


def test_another_user_or_key_gets_no_certificate_for_an_enrolled_host(cloud):
    cloud.enrol()
    stolen = certificates.new_key()
    assert "openstack acstor host allow h1" in refused(cloud, V.OTHER_USER, user="other")
    assert "host allow h1" in refused(cloud, V.OTHER_KEY, key=stolen)
    refused(cloud, V.OTHER_KEY, key=stolen, proof_by=stolen)
    refused(cloud, V.OTHER_KEY, key=stolen, proof_by=cloud.keys[H2])
    assert cloud.store.get_enrolment("h1").public_key == signing.public_pem(cloud.keys[H1]).decode()


def test_host_renews_with_its_key_or_a_new_one_signed_by_the_old_one(cloud):
    cloud.enrol()
    assert cloud.fault(cloud.enrol()) == ""
    new = certificates.new_key()
    lost = cloud.enrol(key=new, proof_by=cloud.keys[H1])  # the response is lost
    newer = certificates.new_key()
    issued = cloud.enrol(key=newer, proof_by=cloud.keys[H1])
    assert cloud.fault(issued) == "" and "the key of its certificate" in cloud.fault(lost)
    refused(cloud, V.OTHER_KEY, key=certificates.new_key(), proof_by=new)
    cloud.enrol(key=newer)  # the new key is in use, so the old one no longer proves anything
    refused(cloud, V.OTHER_KEY, key=certificates.new_key(), proof_by=cloud.keys[H1])


def test_proof_for_another_purpose_is_refused(cloud):
    cloud.enrol()
    csr = certificates.request(H1, certificates.new_key())
    proof = signed_messages.signature_of(signing.SAMPLE, csr, cloud.keys[H1])
    cloud.now_s += 2
    with pytest.raises(enrolment_rules.EnrolmentRefused, match="its key did not sign"):
        cloud.keeper.enrol_host(H1, "u", "", csr, proof)


def test_request_not_signed_by_its_key_is_refused(cloud):
    with pytest.raises(errors.NotAuthenticated):
        cloud.keeper.enrol_host(H1, "u", "", b"nonsense", "")
    assert cloud.store.get_enrolment("h1") is None


def test_host_with_a_damaged_key_is_not_trusted(cloud):
    issued = cloud.enrol()
    assert cloud.fault(issued) == ""

    def cut_key(row):
        row.public_key = row.public_key[:40]
        return row

    cloud.store.change_enrolment(H1, cut_key)
    assert cloud.fault(issued) == "its key in the database is damaged"


def test_revoked_host_is_refused_until_allowed(cloud):
    issued = cloud.enrol()
    cloud.keeper.revoke_host(H1)
    assert cloud.fault(issued) == "it is revoked"
    assert cloud.keeper.load_trust_state().list_revoked(cloud.now_s) == {
        "h1": certificates.refused_before(cloud.now_s)
    }
    assert "host allow h1" in refused(cloud, V.REVOKED)
    cloud.keeper.allow_host(H1)
    again = cloud.enrol(key=certificates.new_key(), user="new")
    assert cloud.fault(again) == "" and "revoked" in cloud.fault(issued)
    revoked = cloud.keeper.load_trust_state().list_revoked(cloud.now_s)
    assert not certificates.is_revoked(cloud.read(again), revoked)
    assert certificates.is_revoked(cloud.read(issued), revoked)


def enrolled_when_revoked(cloud):
    """Return a certificate issued in the second of the host's revocation and approval."""
    cloud.enrol()
    cloud.keeper.revoke_host(H1)
    cloud.keeper.allow_host(H1)
    csr = certificates.request(H1, cloud.keys[H1])
    return cloud.keeper.enrol_host(H1, "u", "", csr, "")


def test_certificate_issued_in_the_second_of_revocation_is_valid(cloud):
    issued = enrolled_when_revoked(cloud)
    assert cloud.fault(issued) == ""


def test_host_can_be_revoked_before_it_enrols(cloud):
    cloud.keeper.revoke_host(H1)
    refused(cloud, V.REVOKED)


def test_table_drops_old_revocations_of_hosts_that_enrolled_again(cloud):
    for host in (H1, H2):
        cloud.enrol(host)
        cloud.keeper.revoke_host(host)
    cloud.keeper.allow_host(H1)
    cloud.enrol()
    assert set(cloud.keeper.load_trust_state().list_revoked(cloud.now_s)) == {"h1", "h2"}
    cloud.now_s += trust_state.REVOCATION_KEPT_S + 10
    assert set(cloud.keeper.load_trust_state().list_revoked(cloud.now_s)) == {"h2"}


def test_newest_revocations_are_listed_when_there_are_too_many(cloud):
    for number in range(4):
        cloud.keeper.revoke_host(ids.HostId(f"h{number}"))
        cloud.now_s += 10
    trust = cloud.keeper.load_trust_state()
    assert set(trust.list_revoked(cloud.now_s, limit=2)) == {"h2", "h3"}


def test_new_host_waits_for_approval_if_required(configure, store):
    cloud = Cloud(configure(enrolment="approved"), store)
    assert "openstack acstor host allow h1" in refused(cloud, V.WAIT)
    refused(cloud, V.WAIT)
    refused(cloud, V.OTHER_USER, user="other")
    row = store.get_enrolment("h1")
    assert (row.state, row.user_id, row.address) == ("waiting", "u", "10.0.0.1")
    assert not cloud.keeper.load_trust_state().is_enrolled("h1")
    cloud.keeper.allow_host(H1)
    refused(cloud, V.OTHER_KEY, key=certificates.new_key())
    assert cloud.fault(cloud.enrol()) == ""
    assert cloud.fault(cloud.enrol()) == "", "a renewal needs nobody's leave"


def test_too_frequent_requests_and_too_many_hosts_are_refused(cloud):
    cloud.enrol()
    csr = certificates.request(H1, cloud.keys[H1])
    with pytest.raises(enrolment_rules.EnrolmentRefused, match="less than a second ago"):
        cloud.keeper.enrol_host(H1, "u", "", csr, "")
    cloud.limit(hosts=1)
    assert "the limit of 1 hosts that are known is reached" in refused(cloud, V.NO_ROOM, host=H2)
    cloud.enrol()


def test_long_waiting_hosts_are_dropped_at_the_limit(configure, store):
    cloud = Cloud(configure(enrolment="approved"), store, hosts=2)
    cloud.keeper.revoke_host(ids.HostId("h9"))
    refused(cloud, V.WAIT, host=H1)
    refused(cloud, V.NO_ROOM, host=H2)
    cloud.now_s += enrolment_rules.EnrolmentLimits().least_waiting_s
    refused(cloud, V.WAIT, host=H2)
    assert [row.host for row in store.list_enrolments()] == ["h2", "h9"]


def test_new_ca_is_announced_before_use_and_the_former_stays_trusted(cloud):
    before = cloud.enrol()
    cloud.keeper.renew_key(certificate_authority.CA, at_once=False)
    soon = cloud.enrol()
    assert soon.ca.startswith(before.ca) and soon.ca.count(b"BEGIN") == 2
    cloud.read(soon, before.ca)
    cloud.now_s += DAY_S
    later = cloud.enrol(H2)
    with pytest.raises(errors.NotAuthenticated):
        cloud.read(later, before.ca)
    cloud.read(later, soon.ca)  # a host that renewed in time trusts the new CA
    cloud.read(soon, later.ca)
    cloud.now_s += DAY_S + certificate_authority.FORMER_TRUSTED_S
    assert cloud.enrol().ca.count(b"BEGIN") == 1


def test_stolen_ca_is_distrusted_at_once(cloud):
    before = cloud.enrol()
    cloud.keeper.renew_key(certificate_authority.CA, at_once=True)
    cloud.now_s += 1
    with pytest.raises(errors.NotAuthenticated):
        cloud.read(before, cloud.keeper.authority_chain())
    cloud.read(cloud.enrol())


def test_new_signer_is_announced_before_use_and_the_former_stays_trusted(cloud):
    issued = cloud.enrol()
    old = cloud.keeper.load_trust_state()
    cloud.keeper.renew_key(certificate_authority.SIGNER, at_once=False)
    renewed = cloud.enrol()
    now = cloud.keeper.load_trust_state()
    assert now.signer == old.signer and len(signing.read_public_keys(renewed.signers)) == 2
    cloud.now_s += DAY_S
    now = cloud.keeper.load_trust_state()
    assert now.signer != old.signer
    table = b"{}"
    signature = now.sign_data(signing.TABLE, table)
    signed_messages.check_signature(
        signing.read_public_keys(renewed.signers), signing.TABLE, table, signature
    )
    with pytest.raises(errors.NotAuthenticated):
        signed_messages.check_signature(
            signing.read_public_keys(issued.signers), signing.TABLE, table, signature
        )
    former = old.sign_data(signing.TABLE, table)  # an earlier table that arrives late
    signed_messages.check_signature(
        signing.read_public_keys(now.signers), signing.TABLE, table, former
    )


def test_expired_certificate_is_accepted_during_the_grace_period(cloud):
    issued = cloud.enrol()
    cloud.now_s += DAY_S + certificates.GRACE_S - 10
    assert cloud.fault(issued) == ""
    cloud.now_s += 20
    assert "7 days ago" in cloud.fault(issued) or "168 h ago" in cloud.fault(issued)


def test_host_detects_a_wrong_clock_by_the_issue_time(cloud):
    issued = cloud.enrol()
    read = cloud.read(issued)
    assert issued.now_s == cloud.now_s
    assert "24 h from now: one of the two clocks is wrong" in certificates.time_fault(
        read, cloud.now_s - DAY_S - certificates.BACKDATE_S, 0
    )


def test_operators_authority_issues_from_its_files(configure, store, tmp_path):
    own = certificates.Authority.create("own", 1_700_000_000, 999 * DAY_S)
    former = certificates.Authority.create("former", 1_700_000_000, 999 * DAY_S)
    cert, key = tmp_path / "ca.pem", tmp_path / "ca.key.pem"
    cert.write_bytes(own.certificate_pem + former.certificate_pem)
    key.write_bytes(own.key_pem)
    cloud = Cloud(configure(ca_dir=str(tmp_path)), store)
    issued = cloud.enrol()
    cloud.read(issued, own.certificate_pem)
    assert issued.ca == cert.read_bytes()
    assert store.authority_keys(certificate_authority.CA) == []
    key.write_bytes(former.key_pem)
    with pytest.raises(errors.Unusable, match=r"ca_dir = .*its key does not match its certificate"):
        cloud.enrol()
    cert.write_bytes(cloud_keys.own_authority(oid.ExtendedKeyUsageOID.CLIENT_AUTH)[0])
    with pytest.raises(errors.Unusable, match=rf"ca_dir: {cert}: .*lacks serverAuth"):
        cloud.enrol()
    cert.write_bytes(own.certificate_pem)
    key.unlink()
    with pytest.raises(errors.Unusable, match=rf"ca_dir: {key}: No such file"):
        cloud.enrol()


def test_revocation_covers_certificates_issued_by_a_fast_clock(cloud):
    cloud.now_s += DAY_S
    stolen = cloud.enrol()
    cloud.now_s -= DAY_S
    cloud.keeper.revoke_host(H1)
    cloud.keeper.allow_host(H1)
    again = cloud.enrol(key=certificates.new_key())
    revoked = cloud.keeper.load_trust_state().list_revoked(cloud.now_s)
    assert certificates.is_revoked(cloud.read(stolen), revoked)
    assert not certificates.is_revoked(cloud.read(again), revoked)


def test_certificate_can_be_revoked_in_the_second_of_its_issue(cloud):
    issued = enrolled_when_revoked(cloud)
    cloud.keeper.revoke_host(H1)
    assert certificates.is_revoked(
        cloud.read(issued), cloud.keeper.load_trust_state().list_revoked(cloud.now_s)
    )


def test_revocation_is_listed_longer_than_the_longest_certificate(cloud):
    cloud.keeper.certificate_lifetime_s = 366 * DAY_S
    stolen = cloud.enrol()
    cloud.keeper.revoke_host(H1)
    cloud.keeper.allow_host(H1)
    cloud.enrol(key=certificates.new_key())
    cloud.now_s = stolen.not_after_s + certificates.GRACE_S
    assert certificates.is_revoked(
        cloud.read(stolen), cloud.keeper.load_trust_state().list_revoked(cloud.now_s)
    )


def test_replayed_request_for_the_former_key_does_not_lock_the_host_out(cloud):
    old, new = cloud.keys[H1], certificates.new_key()
    cloud.enrol()
    renewed = cloud.enrol(key=new, proof_by=old)
    cloud.enrol(key=old)
    assert cloud.fault(renewed) == ""
    assert cloud.fault(cloud.enrol(key=certificates.new_key(), proof_by=new)) == ""


@pytest.mark.parametrize("off_s", [-DAY_S, 0, DAY_S])
@pytest.mark.parametrize("kind", [certificate_authority.CA, certificate_authority.SIGNER])
def test_stolen_key_is_distrusted_whatever_the_clock(cloud, kind, off_s):
    before = cloud.keeper.load_trust_state()
    cloud.keeper.renew_key(kind, at_once=True)
    cloud.keeper.renew_key(kind, at_once=False)
    cloud.now_s += off_s
    now = cloud.keeper.load_trust_state()
    stolen, believed = {
        certificate_authority.CA: (before.ca, now.ca),
        certificate_authority.SIGNER: (signing.public_pem(before.signer), now.signers),
    }[kind]
    assert stolen.strip() not in believed
    assert kind == certificate_authority.CA or now.signer != before.signer
    cloud.read(cloud.enrol())


def test_request_for_a_taken_name_warns_of_the_other_requester(configure, store):
    cloud = Cloud(configure(enrolment="approved"), store)
    refused(cloud, V.WAIT, user="thief", key=certificates.new_key())
    reported = refused(cloud, V.OTHER_USER)
    assert (
        "another user or key requested this name first" in reported and "host show h1" in reported
    )
    assert "not one of your hosts: openstack acstor host allow h1 --fingerprint KEY" in reported
    cloud.keeper.revoke_host(H1)
    cloud.keeper.allow_host(H1)
    assert cloud.fault(cloud.enrol()) == ""


def print_of(key: bytes) -> str:
    return certificates.fingerprint(signing.read_key(key).public_key())


@pytest.mark.parametrize("enrolment_mode", ["automatic", "approved"])
def test_operator_allows_one_key_and_others_are_refused(configure, store, enrolment_mode):
    cloud = Cloud(configure(enrolment=enrolment_mode), store)
    cloud.keeper.allow_host(H1, print_of(cloud.keys[H1]))
    thief = certificates.new_key()
    reported = refused(cloud, V.NOT_LET_IN, key=thief, user="thief")
    assert "an operator allowed another key" in reported and print_of(thief) not in reported
    assert cloud.fault(cloud.enrol(user="any")) == ""
    row = store.get_enrolment("h1")
    assert (row.user_id, row.allowed_fingerprint) == ("any", "")
    assert cloud.fault(cloud.enrol(user="any")) == "", "it renews as every host"


def test_operator_allows_one_user_and_others_are_refused(cloud):
    cloud.keeper.allow_host(H1, print_of(cloud.keys[H1]), "u")
    refused(cloud, V.OTHER_USER, user="thief")
    cloud.enrol()


def test_allowed_key_replaces_an_earlier_waiting_request(configure, store):
    cloud = Cloud(configure(enrolment="approved"), store)
    thief = certificates.new_key()
    refused(cloud, V.WAIT, user="thief", key=thief)
    cloud.keeper.allow_host(H1, print_of(cloud.keys[H1]))
    refused(cloud, V.NOT_LET_IN, user="thief", key=thief)
    cloud.enrol()
    refused(cloud, V.WAIT, host=H2)
    cloud.keeper.allow_host(H2, print_of(cloud.keys[H2]))  # the waiting key: its user stays bound
    refused(cloud, V.OTHER_USER, host=H2, user="thief")
    cloud.enrol(H2)


def test_host_allowed_with_a_new_key_enrols_only_with_it(cloud):
    before, new = cloud.enrol(), certificates.new_key()
    cloud.keeper.allow_host(H1, print_of(new))
    refused(cloud, V.NOT_LET_IN)
    again = cloud.enrol(key=new)
    assert cloud.fault(again) == "" and "revoked" in cloud.fault(before)


def hosts(count: int) -> list[ids.HostId]:
    return [ids.HostId(f"n{number}") for number in range(count)]


@pytest.mark.parametrize("mode", ["automatic", "approved"])
def test_user_enrols_a_limited_number_of_unheard_hosts(configure, store, mode):
    cloud = Cloud(configure(enrolment=mode), store, unseen_per_user=3)
    for host in hosts(3):
        with contextlib.suppress(enrolment_rules.EnrolmentRefused):
            cloud.enrol(host, "shared", certificates.new_key())
    assert len(store.list_enrolments()) == 3
    reported = refused(cloud, V.NO_ROOM, user="shared")
    assert "3 hosts of this user that never sent a sample" in reported
    assert (
        "openstack acstor host forget NAME" in reported
        and "host allow h1 --fingerprint" in reported
    )
    with contextlib.suppress(enrolment_rules.EnrolmentRefused):
        cloud.enrol(H2, "of its own")
    assert store.get_enrolment("h2") is not None
    cloud.keeper.allow_host(H1, print_of(cloud.keys[H1]))
    cloud.enrol(H1, "shared")  # allowed by the operator


def test_heard_hosts_count_towards_the_larger_limit(cloud):
    cloud.limit(unseen_per_user=1, per_user=2)
    for host in (H1, H2):
        cloud.enrol(host)
        samples.note(cloud.store, samples.sample(0, host=host, sent_s=1.0))
    assert "2 hosts of this user" in refused(
        cloud, V.NO_ROOM, host=ids.HostId("h3"), key=certificates.new_key()
    )
    cloud.enrol(H2)


def test_forgotten_name_is_free_and_its_certificate_stays_revoked(cloud):
    cloud.limit(unseen_per_user=1)
    stolen = cloud.enrol(user="thief", key=certificates.new_key())
    samples.note(cloud.store, samples.sample(0, host="h1", sent_s=cloud.now_s - 3600))
    assert cloud.keeper.delete_host(H1)
    assert cloud.store.get_host("h1") is None
    assert "not enrolled here" in cloud.fault(stolen)
    revoked = cloud.keeper.load_trust_state().list_revoked(cloud.now_s)
    assert certificates.is_revoked(cloud.read(stolen), revoked)
    issued = cloud.enrol(user="other")
    assert cloud.fault(issued) == ""
    revoked = cloud.keeper.load_trust_state().list_revoked(cloud.now_s)
    assert certificates.is_revoked(cloud.read(stolen), revoked)
    assert not certificates.is_revoked(cloud.read(issued), revoked)
    cloud.enrol(H2, user="thief")  # forgotten names do not count towards the bound


def test_forgotten_name_needs_approval_again(configure, store):
    cloud = Cloud(configure(enrolment="approved"), store)
    cloud.keeper.allow_host(H1)
    stolen = cloud.enrol()
    cloud.keeper.delete_host(H1)
    refused(cloud, V.WAIT, key=certificates.new_key(), user="new")
    row = store.get_enrolment("h1")
    assert (row.state, row.user_id) == ("waiting", "new")
    assert certificates.is_revoked(
        cloud.read(stolen), cloud.keeper.load_trust_state().list_revoked(cloud.now_s)
    )


def test_waiting_host_is_deleted_completely_and_unknown_host_is_reported(configure, store):
    cloud = Cloud(configure(enrolment="approved"), store)
    refused(cloud, V.WAIT)
    assert cloud.keeper.delete_host(H1) and store.get_enrolment("h1") is None
    assert not cloud.keeper.delete_host(H1)
    cloud.keeper.revoke_host(H1)
    assert cloud.keeper.delete_host(H1) and not cloud.keeper.delete_host(H1)


def test_live_host_is_not_forgotten(cloud):
    cloud.enrol()
    samples.note(cloud.store, samples.sample(0, host="h1", sent_s=cloud.now_s))
    with pytest.raises(
        enrolment_rules.EnrolmentRefused, match=r"still sends samples.*host revoke h1"
    ):
        cloud.keeper.delete_host(H1)
    cloud.now_s += 31
    assert cloud.keeper.delete_host(H1)


def test_forgotten_names_displace_no_revoked_host_and_expire(
    cloud,
):
    cloud.keeper.revoke_host(H2)
    for host in hosts(3):
        cloud.enrol(host, key=certificates.new_key())
        cloud.keeper.delete_host(host)
    trust = cloud.keeper.load_trust_state()
    assert set(trust.list_revoked(cloud.now_s, limit=2)) == {"h2", "n2"}
    cloud.limit(hosts=4)
    refused(cloud, V.NO_ROOM)
    cloud.now_s += trust_state.REVOCATION_KEPT_S + 10
    cloud.enrol()
    assert [row.host for row in cloud.store.list_enrolments()] == ["h1", "h2"]


@pytest.mark.parametrize("kind", [certificate_authority.CA, certificate_authority.SIGNER])
def test_keys_are_limited_to_the_number_that_hosts_accept(cloud, kind):
    for _ in range(signing.MAX_PUBLIC_KEYS - 1):
        cloud.keeper.renew_key(kind, at_once=False)
        cloud.now_s += 60
    with pytest.raises(errors.Unusable, match=r"64 are trusted .* Retry after 2027-.*--stolen"):
        cloud.keeper.renew_key(kind, at_once=False)
    issued = cloud.enrol()
    assert cloud.fault(issued) == "" and signing.read_public_keys(issued.signers)
    cloud.keeper.renew_key(kind, at_once=True)  # a stolen key is replaced in spite of the limit
    assert len(signing.read_public_keys(cloud.keeper.signer_keys())) <= 64
    cloud.keeper.renew_key(kind, at_once=False)


def test_surplus_keys_are_left_out_except_the_one_in_use_and_the_newest(cloud):
    cloud.limit(keys=10**6)
    for _ in range(70):
        cloud.keeper.renew_key(certificate_authority.SIGNER, at_once=False)
    cloud.limit()
    issued = cloud.enrol()
    reported = signing.read_public_keys(issued.signers)
    assert len(reported) == 64
    in_use = cloud.keeper.load_trust_state()
    signed_messages.check_signature(
        reported, signing.TABLE, b"{}", in_use.sign_data(signing.TABLE, b"{}")
    )
