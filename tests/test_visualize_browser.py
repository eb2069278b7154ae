"""Pages to look at vectors in a browser: nothing overflows, and keys show all that pointing does.
Needs selenium, Chromium and its driver."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import spacy

from spacy_elmo import render

from .conftest import add_tagger
from .test_visualize import TEXTS

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs Chromium and its driver"),
]
PANEL = "document.querySelector('.panel').innerText"
FOCUS = f"""
const items = [...document.querySelectorAll('[role=option]')], item = document.activeElement;
return [items.indexOf(item), {PANEL}, getComputedStyle(item).direction]
"""
POINT = f"""
const items = [...document.querySelectorAll('[role=option]')];
return items.map(item => {{
  item.dispatchEvent(new MouseEvent('mouseover', {{bubbles: true}}));
  return {PANEL};
}})
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory):
    options = webdriver.ChromeOptions()
    for name in ("headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-sync"):
        options.add_argument(f"--{name}")
    for name in ("background-networking", "component-update", "quic"):
        options.add_argument(f"--disable-{name}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('browser')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield browser
    browser.quit()


@pytest.mark.parametrize("width", [400, 1200])
@pytest.mark.parametrize("style", ["similarity", "layers", "senses", "surprisal", "mix"])
def test_keys_show_what_pointing_shows(browser, tmp_path: Path, style: str, width: int):
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("elmo")
    add_tagger(nlp)
    shown = nlp if style == "mix" else [*nlp.pipe([*TEXTS, "long" * 100], disable=["tagger"])]
    html = render(shown, style, page=True, jupyter=False, words=["bank", "the"])
    (tmp_path / "page.html").write_text(html, encoding="utf8")
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get((tmp_path / "page.html").as_uri())
    pointed = browser.execute_script(POINT)

    def press(*keys: str) -> list:
        webdriver.ActionChains(browser).send_keys(*keys).perform()
        return browser.execute_script(FOCUS)

    keys = webdriver.Keys
    press(keys.TAB)
    reached = {}
    number, text, direction = press(keys.HOME)
    for _ in pointed:
        reached[number] = text
        # An Arabic sentence is read from right to left.
        key = keys.ARROW_LEFT if direction == "rtl" else keys.ARROW_RIGHT
        number, text, direction = press(key)
    assert [reached[i] for i in range(len(pointed))] == pointed
    assert press(keys.END)[0] == len(pointed) - 1
    assert press(keys.ESCAPE)[0] == -1
    script = "return document.documentElement.scrollWidth <= innerWidth"
    assert browser.execute_script(script)
    assert browser.get_log("browser") == []
