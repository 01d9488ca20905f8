"""The page of GET / in headless Chromium (tests/long.sh page): load, chat, stop, keys, keyboard, narrow and dark windows. Pictures
go to SLUICE_SHOTS for a person to look at."""
import json
import os
import pathlib
import signal
import subprocess
import urllib.request

import pytest
from conftest import BIN, Sluice, free_port, model_path

from support.browser import Browser

SHOTS = pathlib.Path(os.environ.get("SLUICE_SHOTS", "/tmp/sluice-shots"))


def serve(folder, stubs, *args):
    sluice = Sluice(folder, stubs)
    sluice.http = f"http://127.0.0.1:{free_port()}"
    sluice.start(*args, env={"SLUICE_HTTP_LISTEN": sluice.http.removeprefix("http://")})
    sluice.cli("register", "smol", model_path(), "--version", "1")
    sluice.cli("load", "smol")
    return sluice


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    SHOTS.mkdir(exist_ok=True)
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory, stubs):
    sluice = serve(tmp_path_factory.mktemp("state"), stubs)
    yield sluice
    sluice.stop()


def ready(browser, url, **window):
    browser.open(url, **window)
    browser.wait("document.getElementById('summary').textContent === 'smol:1 is serving.' && !document.getElementById('send').disabled")


def is_serving(site):
    try:
        return urllib.request.urlopen(f"{site.http}/healthz", timeout=5).status == 200
    except OSError:
        return False


def say(browser, text, most=None):
    browser.run(f"document.getElementById('temperature').value = '0'; document.getElementById('most').value = '{most or ''}'; "
                "document.getElementById('text').focus()")
    browser.type(text)
    browser.press("Enter")


ENDED = "document.getElementById('send').textContent === 'Send' && document.querySelectorAll('.turn.running').length === 0"


def test_the_page_shows_models_replicas_and_figures(browser, site):
    ready(browser, site.http)
    assert browser.text(".model h3") == "smol:1" and browser.text(".model-head .state") == "serving"
    assert browser.text(".replica .state") == "ready" and browser.text(".replica .numbers") == "0 running, 0 queued, KV cache 0 %"
    assert browser.run("[...document.querySelectorAll('#figures svg')].every(s => s.getAttribute('aria-label').includes('now'))")
    assert browser.run("document.querySelectorAll('#figures svg').length") == 4
    # The browser asked no other server, and the policy kept nothing of the page from running.
    assert all(url.startswith(site.http + "/") or url.startswith("data:") for url in browser.addresses)
    assert not browser.problems


def test_an_answer_streams_and_is_the_models(browser, site):
    ready(browser, site.http)
    browser.run("window.lengths = new Set(); new MutationObserver(() => { const t = document.querySelector('.running .text'); "
                "if (t) window.lengths.add(t.textContent.length); }).observe(document.getElementById('log'), {childList: true, subtree: true, characterData: true})")
    say(browser, "Name three rivers.", 40)
    browser.wait("document.querySelectorAll('.turn').length === 2")
    browser.wait(ENDED)
    inference = site.stubs.inference
    chat = inference.Chat(messages=[inference.ChatMessage(role="user", content="Name three rivers.")])
    same = site.inference.Complete(inference.GenerateRequest(model="smol", chat=chat, sampling=inference.Sampling(temperature=0),
                                                             stopping=inference.Stopping(max_tokens=40))).choices[0].text
    assert browser.run("[...document.querySelectorAll('.turn .text')].pop().textContent") == same.strip()
    assert "40 tokens" in browser.text(".turn .note") and "ended at the limit of tokens" in browser.text(".turn .note")
    assert browser.run("window.lengths.size") > 5
    assert browser.run("document.getElementById('said').textContent") == same  # for screen readers, once and whole
    browser.wait("document.querySelectorAll('#figures .value')[3].textContent !== '0'")
    say(browser, "And one more.", 8)
    browser.wait("document.querySelectorAll('.turn').length === 4")
    browser.wait(ENDED)
    browser.run("document.getElementById('clear').click()")
    assert browser.run("document.querySelectorAll('.turn').length") == 0
    assert not browser.problems


def test_figures_follow_the_load(browser, site):
    ready(browser, site.http, width=1440, height=900)
    calls = [site.inference.Generate(site.request("smol", f"Tell me a long story, number {i}.", max_tokens=1500, ignore_eos=True)) for i in range(3)]
    for call in calls:
        next(call)
    figure = "Number(document.querySelectorAll('#figures .value')[{}].firstChild.data.replace(',', ''))"
    browser.wait(f"{figure.format(0)} === 3 && {figure.format(2)} > 0 && {figure.format(3)} > 0")
    say(browser, "Say what a sluice is, in two sentences.", 60)
    browser.wait("document.querySelectorAll('.turn').length === 2")
    browser.wait(ENDED, 40)
    browser.wait("document.querySelectorAll('#figures .line')[3].getAttribute('d').split('L').length >= 5")
    browser.shot(SHOTS / "busy.png")
    [call.cancel() for call in calls]
    browser.wait(f"{figure.format(0)} === 0")


@pytest.mark.parametrize("way", ["Escape", "button"])
def test_an_answer_stops_and_frees_its_place(browser, site, way):
    ready(browser, site.http)
    say(browser, "Count from one to ten thousand, in words.")
    browser.wait("(document.querySelector('.running .text') || {textContent: ''}).textContent.length > 20")
    browser.press("Escape") if way == "Escape" else browser.run("document.getElementById('send').click()")
    browser.wait(ENDED)
    assert "stopped" in browser.text(".turn .note")
    assert len(browser.text(".turn .text")) > 20  # the part that came stays
    browser.wait("document.querySelector('.replica .numbers').textContent.startsWith('0 running, 0 queued')")
    assert not browser.problems


def test_a_broken_stream_is_a_sentence_and_the_page_comes_back(browser, site):
    ready(browser, site.http)
    say(browser, "Count from one to ten thousand, in words.")
    browser.wait("(document.querySelector('.running .text') || {textContent: ''}).textContent.length > 20")
    (server,) = site.children("sluice-server")
    os.kill(server, signal.SIGKILL)
    browser.wait(ENDED)
    assert browser.text(".turn .error") == "The connection to the server broke."
    assert len(browser.text(".turn .text")) > 20
    site.wait(lambda: site.children("sluice-server") not in ([], [server]) and is_serving(site), 30, "the next server serves")
    browser.wait("document.getElementById('summary').textContent === 'smol:1 is serving.'", 30)
    say(browser, "Say hello.", 4)
    browser.wait("document.querySelectorAll('.turn').length === 4")
    browser.wait(ENDED)
    assert "4 tokens" in browser.text(".turn:last-child .note")


def test_a_refused_request_is_a_sentence_and_the_question_comes_back(browser, site):
    ready(browser, site.http)
    say(browser, "word " * 12000, 8)
    browser.wait(ENDED + " && document.querySelector('.turn .error') !== null")
    assert browser.text(".turn .error").startswith("The server refused the request: ")
    assert browser.run("document.getElementById('text').value").startswith("word word")
    browser.run("document.getElementById('text').value = ''; document.getElementById('most').value = 'many'")
    browser.type("x")
    browser.press("Enter")
    assert browser.run("document.getElementById('text').validationMessage")
    assert browser.run("document.querySelectorAll('.turn').length") == 2  # nothing was sent


def test_every_control_has_a_name_and_the_keyboard_reaches_it(browser, site):
    ready(browser, site.http)
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    roles = ("button", "textbox", "combobox", "image", "link", "DisclosureTriangle")
    seen = [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n.get("ignored") and n["role"]["value"] in roles]
    assert all(name for _, name in seen), seen
    assert {"combobox", "textbox", "image"} <= {role for role, _ in seen}
    browser.run("document.activeElement.blur()")
    reached = []
    for _ in range(8):
        browser.press("Tab")
        reached.append(browser.run("document.activeElement.id || document.activeElement.className || document.activeElement.tagName"))
    assert {"skip", "model", "text", "send"} <= set(reached), reached


@pytest.mark.parametrize("name,window", [("light", {}), ("dark", {"dark": True}), ("phone", {"width": 390, "height": 844, "phone": True}),
                                         ("phone-dark", {"width": 390, "height": 844, "phone": True, "dark": True})])
def test_the_page_fits_its_window(browser, site, name, window):
    ready(browser, site.http, **window)
    browser.run("document.getElementById('most').value = ''")
    say(browser, "Write a Python function that adds two numbers, and say what it does.", 150)
    browser.wait("document.querySelectorAll('.turn').length === 2")
    browser.wait(ENDED, 40)
    browser.wait("document.querySelectorAll('#figures .value')[3].textContent === '0'")
    wide = browser.run("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    browser.shot(SHOTS / f"{name}.png")
    browser.run("window.scrollTo(0, 0)")
    browser.shot(SHOTS / f"{name}-top.png")
    browser.shot(SHOTS / f"{name}-whole.png", whole=True)
    assert wide <= 0
    assert not browser.problems


def test_the_page_says_when_the_server_is_gone(browser, tmp_path, stubs):
    sluice = serve(tmp_path, stubs)
    ready(browser, sluice.http)
    sluice.stop()
    browser.wait("document.getElementById('summary').classList.contains('error')")
    assert browser.text("#summary").startswith("The server does not answer.")


def test_a_refused_key_is_told_and_a_good_key_is_kept_for_the_tab(browser, tmp_path, stubs):
    made = json.loads(subprocess.run([BIN / "sluice", "key", "new", "acme", "--json"], capture_output=True, text=True, check=True).stdout)
    keys = tmp_path / "keys"
    keys.write_text(made["line"] + "\n")
    keys.chmod(0o600)
    (tmp_path / "state").mkdir()
    sluice = serve(tmp_path / "state", stubs, "--keys-file", str(keys))
    try:
        browser.open(sluice.http)
        browser.wait("!document.getElementById('key').hidden")
        assert browser.text("#chat") is None and browser.text("#figures") is None
        assert browser.text("#key-error") is None  # nothing was wrong yet
        assert browser.run("document.activeElement.id") == "key-text"
        browser.shot(SHOTS / "key.png")
        browser.type("slk_wrong")
        browser.press("Enter")
        browser.wait("!document.getElementById('key-error').hidden")
        assert browser.text("#key-error").startswith("The server refused the API key: ")
        assert browser.run("sessionStorage.length") == 0
        browser.shot(SHOTS / "key-refused.png")
        browser.type(made["key"])
        browser.press("Enter")
        browser.wait("document.getElementById('summary').textContent === 'smol:1 is serving.' && !document.getElementById('send').disabled")
        say(browser, "Say hello.", 8)
        browser.wait("document.querySelectorAll('.turn').length === 2")
        browser.wait(ENDED)
        assert "8 tokens" in browser.text(".turn .note")
        assert browser.run("localStorage.length === 0 && document.cookie === '' && !location.href.includes('slk_')")
        browser.run("window.isOld = true; location.reload()")  # the same tab keeps the key
        browser.wait("!window.isOld && document.readyState === 'complete'")
        browser.wait("document.getElementById('summary').textContent === 'smol:1 is serving.'")
        browser.run("document.getElementById('change-key').click()")
        browser.wait("!document.getElementById('key').hidden")
        assert browser.run("sessionStorage.length") == 0
        assert all(url.startswith(sluice.http + "/") or url.startswith("data:") for url in browser.addresses)
    finally:
        sluice.stop()
