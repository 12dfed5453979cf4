"""Every page on a phone, in English and German: no page is wider than the screen, and no word is broken by letter."""

import pytest

from tests.browser.test_admin import LOOKS, shop  # noqa: F401 - a fixture
from tests.browser.test_barriers import everything, seldom  # noqa: F401 - a fixture

pytestmark = pytest.mark.django_db(transaction=True)

#: What reaches beyond the screen or is scrolled sideways, except for pictures, source text, and the week's calendar.
WIDE = """() => {
  const mayScroll = ".tq-graph-frame, .tq-times, .tq-week, pre, select, textarea";
  const name = (node) => `${node.tagName}.${node.getAttribute("class")}#${node.id}`;
  const nodes = [...document.querySelectorAll("main *")].filter((node) => node.checkVisibility());
  const beyond = nodes.filter((node) => node.getBoundingClientRect().right > innerWidth + 1 && !node.closest("pre"));
  const scrolled = nodes.filter((node) => node.scrollWidth > node.clientWidth + 1 && node.clientWidth
    && ["auto", "scroll"].includes(getComputedStyle(node).overflowX)
    && !node.matches(mayScroll) && !node.querySelector(mayScroll));
  const page = document.documentElement.scrollWidth > innerWidth ? ["page"] : [];
  const frames = ".tq-scroll:has(.tq-times, .tq-week), .tq-graph-frame";
  return [...page, ...beyond.filter((node) => !node.closest(frames)).map(name), ...scrolled.map(name)];
}"""
#: Words of up to 22 letters (a card has room for them) whose letters stand on two lines.
BROKEN = """() => {
  const found = [];
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const parent = node.parentElement;
    if (!parent.checkVisibility() || parent.closest("pre, code, svg, .tq-visually-hidden")) continue;
    for (const word of node.data.matchAll(/[\\p{L}\\p{N}]+/gu)) {
      if (word[0].length > 22) continue;
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].filter((box) => box.width).map((box) => Math.round(box.top)));
      if (lines.size > 1) found.push(word[0]);
    }
  }
  return found;
}"""
#: Buttons that cannot be pressed: beyond the screen, or lower than the least that WCAG 2.5.8 asks for.
SMALL = """() => [...document.querySelectorAll("main :is(button, .button, input[type=submit])")]
  .filter((node) => node.checkVisibility() && !node.closest("[popover], dialog"))
  .filter((node) => {
    const box = node.getBoundingClientRect();
    return box.left < 0 || box.right > innerWidth || (box.height < 24 && !node.matches(".tq-copy, .tq-x"));
  }).map((node) => node.textContent || node.value)"""


@pytest.mark.parametrize("language", ["en", "de"])
def test_every_page_fits_a_phone(visit, everything, settings, language):  # noqa: F811
    settings.LANGUAGE_CODE = language
    visitor = visit(**LOOKS["phone"])
    visitor.log_in("alice")
    page = visitor.page
    pages = everything | seldom(everything)
    del pages["confirm"]
    found = {}
    for name, path in pages.items():
        visitor.go(path)
        if not path:
            page.wait_for_selector("#tq-overview[data-drawn]")
        problems = {
            what: page.evaluate(script) for what, script in (("wide", WIDE), ("broken", BROKEN), ("small", SMALL))
        }
        if any(problems.values()):
            found[name] = {what: names[:5] for what, names in problems.items() if names}
    assert found == {}
    assert visitor.problems == []


def test_a_row_of_a_list_is_a_card(visit, everything):  # noqa: F811
    """The cells stand under each other with their names, also after an update; all rows can still be selected."""
    visitor = visit(**LOOKS["phone"])
    visitor.log_in("alice")
    page = visitor.page
    visitor.go("task/")
    state = page.locator("#result_list tbody tr >> nth=0 >> .field-state")
    assert state.evaluate("(cell) => getComputedStyle(cell, '::before').content") == '"Status, attempt"'
    page.wait_for_selector("#result_list tbody[data-updated]", timeout=15_000)
    assert state.get_attribute("data-label") == "Status, attempt"
    page.check("#action-toggle")
    assert page.locator("#result_list tbody tr.selected").count() > 5
    visitor.go("")
    page.wait_for_selector("#tq-row-mail [data-label='Queued by band']")
    assert visitor.problems == []
