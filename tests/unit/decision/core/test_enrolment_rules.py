# SPDX-License-Identifier: Apache-2.0
import pytest

from acstor_decision.core import enrolment_rules

S, V = enrolment_rules.EnrolmentState, enrolment_rules.Verdict


def judge(known, user="u", key="k1", proven=(), automatic=True):
    asked = enrolment_rules.CertificateRequest(
        user, key, f"print of {key}", lambda of: of in proven
    )
    return enrolment_rules.decide_request(known, asked, is_automatic=automatic)


def known(state, user="u", *keys, fingerprint=""):
    return enrolment_rules.KnownEnrolment(state, user, keys, fingerprint)


def test_refusal_names_the_host_and_the_reason():
    refused = enrolment_rules.EnrolmentRefused("h1", V.TOO_OFTEN, "wait a second")
    assert str(refused) == "host h1: wait a second"
    assert refused.args == (refused.host, refused.verdict, refused.why)
    assert refused.verdict is V.TOO_OFTEN


K1_ALONE = known(S.ALLOWED, "", fingerprint="print of k1")


@pytest.mark.parametrize(
    ("before", "asked", "verdict"),
    [
        (None, {}, V.ISSUE),
        (None, {"automatic": False}, V.WAIT),
        (known(S.ENROLLED, "u", "k1"), {}, V.ISSUE),
        (known(S.ENROLLED, "u", "k1"), {"key": "k2", "proven": ["k1"]}, V.ISSUE),
        (known(S.ENROLLED, "u", "k2", "k1"), {"key": "k3", "proven": ["k1"]}, V.ISSUE),
        (known(S.ENROLLED, "u", "k1"), {"automatic": False}, V.ISSUE),
        (known(S.ENROLLED, "u", "k1"), {"key": "k2"}, V.OTHER_KEY),
        (known(S.ENROLLED, "u", "k1"), {"key": "k2", "proven": ["k2"]}, V.OTHER_KEY),
        (known(S.ENROLLED, "u", "k1"), {"user": "other"}, V.OTHER_USER),
        (known(S.ENROLLED, "u", "k1"), {"user": "other", "proven": ["k1"]}, V.OTHER_USER),
        (known(S.ENROLLED, "u", "k1"), {"user": ""}, V.OTHER_USER),
        (known(S.ENROLLED, "", "k1"), {"user": "any"}, V.ISSUE),
        (known(S.ENROLLED, "", "k1"), {"key": "k2"}, V.OTHER_KEY),
        (known(S.REVOKED, ""), {}, V.REVOKED),
        (known(S.REVOKED, "u", "k1"), {"proven": ["k1"]}, V.REVOKED),
        (known(S.ALLOWED, ""), {"automatic": False}, V.ISSUE),
        (known(S.ALLOWED, "u", "k1"), {"automatic": False}, V.ISSUE),
        (known(S.ALLOWED, "u", "k1"), {"key": "k2", "automatic": False}, V.OTHER_KEY),
        (known(S.ALLOWED, "u", "k1"), {"user": "other", "automatic": False}, V.OTHER_USER),
        (known(S.WAITING, "u", "k1"), {"automatic": False}, V.WAIT),
        (known(S.WAITING, "u", "k1"), {"key": "k2", "automatic": False}, V.OTHER_KEY),
        (known(S.WAITING, "u", "k1"), {}, V.ISSUE),
        (K1_ALONE, {"automatic": False}, V.ISSUE),
        (K1_ALONE, {"user": "any", "automatic": False}, V.ISSUE),
        (K1_ALONE, {"key": "k2"}, V.NOT_LET_IN),
        (K1_ALONE, {"key": "k2", "proven": ["k1", "k2"]}, V.NOT_LET_IN),
        (known(S.ALLOWED, "u", fingerprint="print of k1"), {"user": "other"}, V.OTHER_USER),
        (known(S.FORGOTTEN, ""), {}, V.ISSUE),
        (known(S.FORGOTTEN, ""), {"automatic": False}, V.WAIT),
    ],
)
def test_host_name_belongs_to_its_first_key_and_user_until_allowed_again(before, asked, verdict):
    assert judge(before, **asked) is verdict
