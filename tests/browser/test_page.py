"""The page as a person uses it, in a real browser: every view, with the server killed in between."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from small import small_settings
from torchsdm import SDMClassifier

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SHOTS = os.environ.get("SHOTS")  # a folder for pictures, for whoever wants to look
UPLOADED = [
    {"id": "a", "text": "The soundtrack of this film is wonderful.", "label": "positive"},
    {"id": "b", "text": "The photography of this film is dreadful.", "label": "positive"},  # a wrong label
    {"id": "c", "text": "The opening of this film is gripping.", "label": "positive"},
    {"id": "d", "text": "The finale of this film is tedious.", "label": "negative"},
    {"id": "e", "text": "2.4 bar at the inlet", "label": "negative"},
    {"id": "f", "text": "The acting of this film is neither here nor there.", "label": "negative"},
]


def upload(page, rows=UPLOADED, name="new.jsonl"):
    content = "\n".join(json.dumps(row) for row in rows).encode()
    page.set_input_files("input[type=file]", {"name": name, "mimeType": "text/plain", "buffer": content})
    page.get_by_text(re.compile(f"^{len(rows)} inputs? added to the queue")).first.wait_for()
    page.wait_for_function("n => document.querySelectorAll('.queue .lane').length === n", arg=len(rows))


def shown(page, name):
    """How many rows a status has, as its button says."""
    return int(re.search(r"\d+", page.get_by_role("button", name=re.compile(f"^{name} ")).inner_text())[0])


def wait_for(page, name, n):
    page.wait_for_function(
        "wanted => [...document.querySelectorAll('.tabs button')].some(one => one.innerText.trim() === wanted)",
        arg=f"{name} {n}",
    )


def test_a_person_tries_maps_labels_adds_and_undoes(model, serve, open_page):
    service, page = serve(model), open_page()

    # Try: type, see the decision, open an exemplar.
    page.goto(service.url)
    page.get_by_label("Text", exact=True).fill("The dialogue of this film is wonderful.")
    page.keyboard.press("Control+Enter")
    verdict = page.locator(".verdict")
    verdict.wait_for()
    (expected,) = service.ask("v1/explain", {"texts": ["The dialogue of this film is wonderful."]})["explanations"]
    assert verdict.locator("h2").inner_text() == expected["prediction"] == "positive"
    assert expected["lane"] in verdict.inner_text()
    assert expected["reason"][1:] in verdict.inner_text()  # the first letter is a capital there
    assert page.locator(".gauge").count() == 4 + ("score" in expected)
    signs = ["vouches" if one["vouches"] else "against" for one in expected["exemplars"]]
    assert [one.get_attribute("class") for one in page.locator(".exemplars > li:not(.ends)").all()] == signs
    first = page.locator(".exemplars summary").first
    first.focus()
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Inspect this example").first.click()
    page.wait_for_function(
        "text => document.querySelector('#text').value === text", arg=expected["exemplars"][0]["text"]
    )
    link = page.url

    # Map: move alpha with the keyboard; the table says what the library says.
    page.get_by_role("link", name="Map", exact=True).click()
    slider = page.get_by_label(re.compile("^Target accuracy"))
    slider.wait_for()
    drawn = service.ask("v1/map")
    for key, steps in (("ArrowRight", 5), ("ArrowLeft", 12)):
        slider.focus()
        for _ in range(steps):
            page.keyboard.press(key)
        region = drawn["regions"][int(slider.input_value())]
        admitted = page.locator("table.stats tbody tr").first.inner_text()
        if region["found"]:
            points, thresholds = drawn["points"], region["thresholds"]
            inside = [
                q >= region["min_rescaled_similarity"] and p >= thresholds[y]
                for q, p, y in zip(
                    *(points[name] for name in ("rescaled_similarity", "confidence", "predictions")), strict=True
                )
            ]
            assert f"{sum(inside)} of {len(inside)}" in admitted and f"α {region['alpha']}" in admitted
        else:
            assert "no region" in admitted
    page.get_by_role("button", name="Not admitted").click()
    page.locator("#listed ~ div table").wait_for()

    # Review: upload, label with single keys, undo one, see the effect, add.
    page.get_by_role("link", name="Review", exact=True).click()
    upload(page)
    assert "photography" in page.locator(".queue > li").first.inner_text()  # the wrong label comes first
    page.get_by_label("Your name").fill("ada")
    page.locator("h1").click()
    page.keyboard.press("1")  # negative, in the order of the classes
    wait_for(page, "Labelled", 1)
    page.keyboard.press("s")
    wait_for(page, "Skipped", 1)
    page.keyboard.press("u")
    wait_for(page, "Skipped", 0)
    page.keyboard.press("2")
    wait_for(page, "Labelled", 2)
    before = service.ask("v1/model")
    page.get_by_role("button", name="See the effect").click()
    page.get_by_text("What adding 2 examples would do").wait_for()
    support = page.locator("aside tbody tr", has_text="support").inner_text().split()
    assert [int(n) for n in support if n.isdecimal()] == [before["n_support"], before["n_support"] + 2]
    assert service.ask("v1/model")["version"] == before["version"]  # a preview changes nothing

    # The server is killed; labels and queue are still there.
    service.kill()
    service.start()
    page.reload()
    wait_for(page, "Labelled", 2)
    assert shown(page, "To do") == len(UPLOADED) - 2
    page.get_by_role("button", name="See the effect").click()
    page.get_by_role("button", name="Add 2 examples").click()
    page.get_by_text(re.compile("2 examples added in version")).wait_for()
    wait_for(page, "Added", 2)
    after = service.ask("v1/model")
    assert after["version"] > before["version"] and after["n_support"] == before["n_support"] + 2
    change = next(one for one in service.ask("v1/changes")["changes"] if one["what"] == "add")
    assert (change["who"], change["why"], change["n"]) == ("ada", "reviewed", 2)

    # Killed again: what was added stays added, and can be undone on the page.
    service.kill()
    service.start()
    page.reload()
    wait_for(page, "Added", 2)
    assert service.ask("v1/model")["n_support"] == after["n_support"]
    page.get_by_role("link", name="Health", exact=True).click()
    page.get_by_role("button", name=f"Undo version {change['version']}").click()
    page.get_by_text(re.compile("undone by")).first.wait_for()
    assert service.ask("v1/model")["n_support"] == before["n_support"]
    page.get_by_role("link", name="Review", exact=True).click()
    wait_for(page, "Labelled", 2)
    with page.expect_download() as taken:
        page.get_by_role("button", name="JSONL").click()
    rows = [json.loads(line) for line in Path(taken.value.path()).read_text(encoding="utf-8").splitlines()]
    assert {(row["id"], row["label"]) for row in rows} >= {("b", "negative")} and len(rows) == 2

    # A link reproduces its view, and nothing was asked of anybody else.
    page.goto(link)
    page.locator(".verdict").wait_for()
    assert page.locator("#text").input_value() == expected["exemplars"][0]["text"]
    assert {urlsplit(url).hostname for url in page.requested if not url.startswith(("blob:", "data:"))} == {"127.0.0.1"}
    refused = [one for one in page.problems if "ERR_CONNECTION" not in one]  # while the server was down
    assert not refused


def test_what_comes_in_is_seen_on_the_page(model, serve, open_page):
    service, page = serve(model), open_page()
    service.ask("v1/decide", {"texts": [f"The {word} of this film is dull." for word in ("plot", "cast", "acting")]})
    page.goto(f"{service.url}#health")
    page.get_by_role("img", name=re.compile("Inputs over time by lane")).wait_for()
    assert "3 inputs seen" in page.locator("main").inner_text()
    assert not page.problems


def test_the_page_asks_for_the_token_where_one_is_needed(model, serve, open_page, tmp_path):
    secret = tmp_path / "token"
    secret.write_text("0123456789abcdef", encoding="utf-8")
    service, page = serve(model, "--token-file", secret), open_page()
    page.goto(f"{service.url}#try?text=The+plot+is+fine.")
    page.locator(".verdict").wait_for()  # on this machine questions need none
    page.get_by_role("link", name="Review", exact=True).click()
    content = json.dumps(UPLOADED[0]).encode()
    chosen = {"name": "new.jsonl", "mimeType": "text/plain", "buffer": content}
    for given in ("no token at all", "0123456789abcdef"):
        page.set_input_files("input[type=file]", chosen)
        asked = page.get_by_label("This needs the service's token.")
        asked.wait_for()
        assert page.locator(".queue > li").count() == 0
        asked.fill(given)
        page.get_by_role("button", name="Use it").click()
        asked.wait_for(state="detached")
    upload(page, UPLOADED[:1])
    assert "0123456789abcdef" not in page.url and not page.evaluate("Object.values(localStorage).join()").count("0123")
    assert all("401" in problem for problem in page.problems)


VIEWS = {
    "try": "#try?text=The+acting+is+splendid%2C+but+the+ending+of+this+film+is+dull.",
    "map": "#map",
    "review": "#review",
    "health": "#health",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_is_accessible_and_fits(model, serve, open_page, axe, scheme):
    service = serve(model)
    service.ask("v1/decide", {"texts": [row["text"] for row in UPLOADED]})
    for width in (1280, 390):
        page = open_page(width, scheme, bypass_csp=True)  # so that axe can be put into the page
        page.goto(f"{service.url}#review")
        if width == 1280:
            upload(page)
            page.locator("h1").click()
            page.keyboard.press("1")
            page.get_by_role("button", name="See the effect").click()
        page.locator(".queue li").first.wait_for()
        for view, address in VIEWS.items():
            if view != "review":
                page.goto(service.url + address)
            page.locator(
                {"try": ".verdict", "map": ".plot canvas", "review": ".queue li", "health": "#versions"}[view]
            ).first.wait_for()
            time.sleep(0.5)
            if SHOTS:
                page.screenshot(path=f"{SHOTS}/{view}-{width}-{scheme}.png", full_page=True)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{view} is wider than {width}"
            page.evaluate(axe)
            found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
            serious = [
                f"{one['id']}: {node['html'][:120]}"
                for one in found
                if one["impact"] in ("serious", "critical")
                for node in one["nodes"]
            ]
            assert not serious, (view, width, serious)
            page.goto(f"{service.url}#review")
        assert not page.problems


def test_the_slider_draws_none_of_50_000_points_again(tmp_path, serve, open_page):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, size=50_400)
    X = (rng.normal(size=(len(y), 6)) + 3.0 * np.eye(6)[y]).astype(np.float32)
    small = SDMClassifier(0.9, **small_settings())
    small.set_params(certification_size=None)
    small.fit(X[:400], y[:400]).add_calibration(X[400:], y[400:]).recalibrate().save(tmp_path / "model")
    service, page = serve(tmp_path / "model"), open_page()
    page.goto(f"{service.url}#map")
    slider = page.get_by_label(re.compile("^Target accuracy"))
    slider.wait_for()
    page.locator(".plot canvas").first.wait_for()
    n = int(re.search(r"of ([\d,]+)", page.locator("table.stats").inner_text())[1].replace(",", ""))
    assert n > 50_000
    page.wait_for_timeout(1000)
    drawn = page.evaluate(
        """async () => {
            let drawn = 0;
            for (const name of ["fillRect", "moveTo", "lineTo", "arc", "fillText"]) {
                const own = CanvasRenderingContext2D.prototype[name];
                CanvasRenderingContext2D.prototype[name] = function (...given) {
                    drawn++;
                    return own.apply(this, given);
                };
            }
            const slider = document.querySelector("#alpha");
            const next = () => new Promise((done) => requestAnimationFrame(done));
            for (let turn = 0; turn < 60; turn++) {
                slider.value = turn % (Number(slider.max) + 1);
                slider.dispatchEvent(new Event("input", { bubbles: true }));
                await next();
            }
            const whileMoving = drawn;
            document.querySelector(".plot").style.width = "400px";
            await next(); await next(); await next();
            return [whileMoving, drawn];
        }"""
    )
    assert drawn[0] == 0  # the region is a box above the points, which are not drawn again
    assert drawn[1] > 10_000  # they are at another size, so that the count does count
