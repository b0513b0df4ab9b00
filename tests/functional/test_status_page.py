# SPDX-License-Identifier: Apache-2.0
"""The status page in a real browser, over the real API and its token check.

The database has recorded samples; Keystone and Glance are those of ``cloud_services``.

"""

import contextlib
import pathlib
import re
import sqlite3
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from acstor_common.model import boot_timeline
from acstor_common.service import boot_chart
from acstor_common.wire import decision_messages
from acstor_decision.db import database
from acstor_osc.v1 import status
from tests.fakes import cloud_services
from tests.fakes import decision_api
from tests.fakes import decision_databases
from tests.fakes import glance_records
from tests.lab import chromium
from tests.lab import runs
from tests.unit.decision.api import conftest as samples

pytestmark = [
    pytest.mark.skipif(not chromium.is_installed(), reason="needs Chromium: run tools/install.sh"),
    pytest.mark.allow_log("Keystone|Glance|token|the database fails"),
]

OPERATOR, TENANT = "operators-token", "tenants-token"
SERVER = "0a2c1f9e-5d6b-4a5c-9c61-1e1b5b1f0a12"
EVIL = "<img src=x onerror='hit=1'><script>hit=1</script>\u202e"
SEEN = EVIL.replace("\u202e", "?")
HOSTS = 60
IS_SHOWN = "document.getElementById('data')?.hidden === false"
ASKS_FOR_TOKEN = "document.getElementById('sign-in')?.hidden === false"
NOTICE = "document.getElementById('notice').textContent"


@pytest.fixture
def store(tmp_path: pathlib.Path) -> Iterator[database.Database]:
    """Return the database of a cloud with problems and with malicious names."""
    with decision_databases.opened(f"sqlite:///{tmp_path}/decision.sqlite") as made:
        now_s = time.time()
        fault = decision_messages.HostFault(EVIL, now_s - 100)
        health = decision_messages.HostHealth(
            version=EVIL, waiting=3, longest_wait_s=41.5, fallbacks={EVIL: 2}, faults={EVIL: fault}
        )
        reported = [samples.sample(n, sent_s=now_s) for n in range(HOSTS)]
        samples.note(made, *reported[3:])
        read = decision_messages.ReadBytes(local=1 << 20, peer=3 << 20)
        held = decision_messages.HeldImage(size_bytes=1 << 30, cached_bytes=1 << 20, read=read)
        images = {glance_records.IMAGE_ID: held}
        samples.note(made, samples.sample(0, sent_s=1.0))
        reported[1] = samples.sample(1, sent_s=now_s, health=health, images=images)
        samples.note(made, reported[1], overloaded=2)
        peers = {"h0059": decision_messages.PeerTraffic(3 << 20, 5 << 20)}
        samples.note(made, samples.sample(2, sent_s=now_s, peers=peers, boots=(boot(now_s),)))
        exchange = {"h0004": decision_messages.PeerTraffic(7 << 20, 2 << 20)}
        samples.note(made, samples.sample(3, sent_s=now_s, peers=exchange))
        samples.publish(made, 7, hosts=3)
        with contextlib.closing(sqlite3.connect(tmp_path / "decision.sqlite")) as link, link:
            # samples cannot have such names, but a compromised database could
            chunks = {"name": EVIL, "bytes_s": 10e9}
            link.execute(
                "UPDATE hosts SET host = :name, location = :name, chunks_sent_bytes_s = :bytes_s"
                " WHERE host = 'h0002'",
                chunks,
            )
            link.execute("UPDATE boots SET host = :name", chunks)
        yield made


def boot(now_s: float) -> boot_timeline.Timeline:
    reads = boot_timeline.Slice(4, 0.2, {"source": 1 << 20, "peer": 2 << 20, "zero": 1 << 20})
    return boot_timeline.Timeline(
        image_id=glance_records.IMAGE_ID,
        instance_id=SERVER,
        began_at_s=now_s - 60,
        boot_image="ready",
        spans=(boot_timeline.Span("attach", 0.0, 0.5), boot_timeline.Span("chunk map", 0.1, 0.4)),
        opened_s=2.0,
        last_s=7.0,
        is_over=True,
        reads=40,
        waited_s={"source": 1.5, "peer": 0.25},
        bytes={"source": 10 << 20, "peer": 20 << 20, "zero": 10 << 20},
        slice_s=0.5,
        slices=(reads,) * 10,
        longest=(boot_timeline.LongRead(3.0, 0.7, 65536, 65536, {"source": 65536}, EVIL),),
    )


@pytest.fixture
def services() -> Iterator[cloud_services.CloudServices]:
    with cloud_services.serve() as serving:
        serving.roles |= {OPERATOR: ("admin",), TENANT: ("member", "reader")}
        serving.images = [
            glance_records.record(name=EVIL),
            glance_records.record(id=SERVER, name="cd", disk_format="iso"),
        ]
        yield serving


@pytest.fixture
def browser(tmp_path: pathlib.Path) -> Iterator[chromium.Browser]:
    with chromium.Browser(tmp_path) as started:
        yield started


@pytest.fixture
def url(
    store: database.Database, services: cloud_services.CloudServices, tmp_path: pathlib.Path
) -> Iterator[str]:
    with decision_api.serve(tmp_path, services.url) as serving:
        yield serving


@pytest.fixture
def sign_in(browser: chromium.Browser, url: str) -> Callable[[str], None]:
    """Return a function that opens the page and signs in, as a user does."""

    def do(token: str) -> None:
        browser.open(f"{url}/status")
        browser.wait_for(ASKS_FOR_TOKEN)
        browser.type_into("#token", token)
        browser.press_enter()

    return do


def update(browser: chromium.Browser) -> None:
    """Let the page poll now, through a new order of hosts."""
    browser.evaluate("document.getElementById('order').dispatchEvent(new Event('change')) && 0")


def ask(url: str, path: str) -> Any:
    return requests.get(f"{url}{path}", headers={"X-Auth-Token": OPERATOR}, timeout=30).json()


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def in_one_line(text: str) -> str:
    return words(text).strip().replace("; acstor", " acstor")  # two lines on the page


def test_page_shows_the_data_of_the_command(browser, sign_in, url):
    sign_in(OPERATOR)
    browser.wait_for(IS_SHOWN)
    browser.wait_for("document.querySelectorAll('#images tr').length")
    found, shown = ask(url, "/v1/status"), in_one_line(browser.text("main"))
    for name in ("hosts", "images", "images_in_use", "guests", "checkpoints", "findings"):
        for line in status._COLUMNS[name](found[name]).human_readable().splitlines():
            assert in_one_line(line) in shown, (name, line)
    assert browser.text("#health") == found["health"] == "error"
    assert "epoch 7, 3 hosts" in shown
    rows = browser.evaluate(
        "[...document.querySelectorAll('#hosts tbody tr')].map(r => r.cells[1].innerText)"
    )
    assert rows == ["overloaded", "silent", *["up"] * 23]
    assert f"The first 25 hosts of {HOSTS}" in shown


def test_markup_in_names_of_tenants_and_hosts_is_shown_as_text(browser, sign_in):
    sign_in(OPERATOR)
    browser.wait_for("document.querySelectorAll('#boots button').length")
    browser.click("#boots button")
    browser.wait_for("document.querySelectorAll('#images tr').length")
    browser.wait_for("document.querySelectorAll('#timeline table').length")
    browser.click("#timeline summary")
    for selector in ("#findings", "#overview", "#hosts", "#boots", "#timeline", "#images"):
        assert SEEN in browser.text(selector), selector
    browser.click("#flows-title + p ~ details summary")
    assert "all other hosts" in browser.text("#flows")
    assert "0.0 75.0 0.0" in words(browser.text("#images"))
    assert browser.evaluate("document.querySelectorAll('img, body script').length") == 0
    assert browser.evaluate("window.hit ?? null") is None
    refused = [text for text in browser.complaints() if not text.startswith("network: ")]
    assert refused == []


def test_browser_refuses_markup_and_foreign_scripts(browser, sign_in):
    sign_in(OPERATOR)
    browser.wait_for(IS_SHOWN)
    tries = (
        "document.body.innerHTML = '<b>x</b>'",
        "document.createElement('script').text = 'window.hit = 1'",
        "window.eval('1')",
    )
    for code in tries:
        attempt = f"(() => {{ try {{ {code}; return 'ran' }} catch (e) {{ return e.name }} }})()"
        assert browser.evaluate(attempt) in ("TypeError", "EvalError"), code
    fetched = "fetch('http://127.0.0.1:9/').then(() => 'sent', e => e.name)"
    assert browser.evaluate(fetched) == "TypeError"
    assert any("Content Security Policy" in text for text in browser.complaints())


def test_timeline_shows_the_numbers_of_the_command(browser, sign_in, url):
    sign_in(OPERATOR)
    browser.wait_for(IS_SHOWN)
    browser.type_into("#server", f" {SERVER.upper()} ")
    browser.press_enter()
    browser.wait_for("document.querySelectorAll('#timeline table').length")
    shown = words(browser.text("#timeline"))
    for share in boot_chart.shares(boot(time.time())):
        assert f"{share.what} {share.took_s:.2f}" in shown
    assert "until the last read 7.00" in shown
    assert "another host 20.0 66.7" in shown and "zeros 10.0" in shown
    assert browser.evaluate("document.querySelectorAll('#timeline rect.wait').length") == 11
    browser.evaluate("document.getElementById('server').value = ''")
    browser.type_into("#server", glance_records.ARTEFACT_ID)
    browser.press_enter()
    browser.wait_for(
        "document.querySelector('#timeline').innerText.includes('No host has reported a boot')"
    )


def test_token_is_in_no_url_and_is_not_stored(browser, sign_in, url):
    sign_in(OPERATOR)
    browser.wait_for("document.querySelectorAll('#images tr').length")
    sent = browser.requests()
    assert all(request["url"].startswith(f"{url}/") for request in sent)
    assert not [request["url"] for request in sent if OPERATOR in request["url"]]
    with_token = [request for request in sent if OPERATOR in request["headers"].values()]
    assert {request["url"].removeprefix(url).split("/")[1] for request in with_token} == {"v1"}
    assert {request["method"] for request in sent} == {"GET"}
    kept = "[document.cookie, localStorage.length, sessionStorage.length, location.href]"
    assert browser.evaluate(kept) == ["", 0, 0, f"{url}/status"]
    browser.call("Page.reload")
    browser.wait_for(ASKS_FOR_TOKEN)
    assert not browser.evaluate(IS_SHOWN)


def test_page_shows_why_a_token_is_refused(browser, sign_in, services):
    sign_in("forged")
    browser.wait_for(f"{NOTICE}.includes('Keystone does not accept the token')")
    for token in ("two words", "ä"):
        browser.type_into("#token", token)
        browser.press_enter()
        browser.wait_for(f"{NOTICE}.includes('This is not a token')")
    browser.type_into("#token", TENANT)
    browser.press_enter()
    browser.wait_for(f"{NOTICE}.includes('The role is missing: the policy acstor:status:get')")
    assert not browser.evaluate(IS_SHOWN)
    browser.type_into("#token", OPERATOR)
    browser.press_enter()
    browser.wait_for(IS_SHOWN)
    assert browser.text("#notice") == ""


def test_page_survives_outages_and_clears_its_data_when_the_token_expires(
    browser, sign_in, services
):
    sign_in(OPERATOR)
    browser.wait_for("document.querySelectorAll('#images tr').length")
    services.is_up = False
    update(browser)
    browser.wait_for(f"{NOTICE}.includes('Not available: Keystone does not answer')")
    assert "The next attempt is in 10 s" in browser.text("#notice")
    assert browser.evaluate("document.getElementById('data').className") == "stale"
    update(browser)
    browser.wait_for(f"{NOTICE}.includes('The next attempt is in 20 s')")
    services.is_up = True
    update(browser)
    browser.wait_for(f"{NOTICE} === ''")
    del services.roles[OPERATOR]
    update(browser)
    browser.wait_for(f"{NOTICE}.includes('it has expired or is wrong')")
    assert not browser.evaluate(IS_SHOWN)
    assert browser.evaluate("document.querySelectorAll('#data table, #data dd').length") == 0


def test_page_reports_an_api_that_is_down(browser, store, services, tmp_path):
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(decision_api.serve(tmp_path, services.url, OPERATOR))
        browser.open(f"{address}/status")
        browser.wait_for("document.querySelectorAll('#images tr').length")
    update(browser)
    browser.wait_for(f"{NOTICE}.includes('The REST API does not answer')")


def test_page_needs_no_sign_in_behind_a_proxy_that_adds_the_token(
    browser, store, services, tmp_path
):
    with decision_api.serve(tmp_path, services.url, OPERATOR) as address:
        browser.open(f"{address}/status")
        browser.wait_for(IS_SHOWN)
        assert browser.evaluate("document.getElementById('sign-in').hidden")
        assert browser.evaluate("document.getElementById('sign-out').hidden")


def test_page_shows_the_response_of_a_proxy_in_place_of_the_api(browser, store, services, tmp_path):
    answers: dict[str, decision_api.Answer] = {}
    with decision_api.serve(tmp_path, services.url, OPERATOR, answers=answers) as address:
        browser.open(f"{address}/status")
        browser.wait_for("document.querySelectorAll('#images tr').length")
        answers["/v1/hosts"] = decision_api.Answer("502 Bad Gateway")
        update(browser)
        browser.wait_for(f"{NOTICE}.includes('The API failed: the answer is 502')")
        answers["/v1/hosts"] = decision_api.Answer("200 OK")
        update(browser)
        browser.wait_for(f"{NOTICE}.includes('is not valid JSON')")
        assert browser.evaluate(IS_SHOWN)
        elsewhere = {"Location": "http://127.0.0.1:9/login"}
        answers["/v1/status"] = decision_api.Answer("302 Found", elsewhere)
        update(browser)
        browser.wait_for(f"{NOTICE}.includes('asks you to sign in: reload this page')")
        assert not browser.evaluate(IS_SHOWN)


def test_section_refused_by_a_policy_does_not_hide_the_others(browser, store, services, tmp_path):
    refused = {"acstor:traffic:peers": "!", "acstor:boot:list": "!"}
    with decision_api.serve(tmp_path, services.url, OPERATOR, refused) as address:
        browser.open(f"{address}/status")
        browser.wait_for("document.querySelectorAll('#images tr').length")
    assert "the policy acstor:traffic:peers does not permit" in browser.text("#picture")
    assert "the policy acstor:boot:list does not permit" in browser.text("#boots")


def polls(browser: chromium.Browser) -> int:
    browser.evaluate("0")  # pending events arrive with a response
    return sum(request["url"].endswith("/v1/status") for request in browser.requests())


def wait_for_polls(browser: chromium.Browser, number: int) -> None:
    runs.wait_for(
        lambda: polls(browser) == number, 5.0, f"{number} polls", lambda: f"{polls(browser)} polls"
    )


def test_hidden_or_paused_page_sends_no_requests(browser, sign_in):
    hidden = "Object.defineProperty(document, 'hidden', {configurable: true, get: () => %s}) && 0;"
    changed = "document.dispatchEvent(new Event('visibilitychange')) && 0"
    sign_in(OPERATOR)
    browser.wait_for(IS_SHOWN)
    browser.evaluate(hidden % "true")
    before = polls(browser)
    time.sleep(11)
    assert polls(browser) == before
    browser.evaluate(hidden % "false" + changed)
    wait_for_polls(browser, before + 1)
    browser.wait_for("new Promise(done => setTimeout(() => done(true), 1500))")
    assert polls(browser) == before + 1
    browser.click("#pause")
    time.sleep(11)
    assert polls(browser) == before + 1
    browser.click("#pause")
    wait_for_polls(browser, before + 2)
    browser.wait_for("new Promise(done => setTimeout(() => done(true), 1500))")
    assert polls(browser) == before + 2
