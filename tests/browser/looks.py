"""What a test finds on a page: barriers, what does not fit a phone; in light and dark colours, and on a phone."""

from collections.abc import Callable, Sequence
from pathlib import Path

import axe_playwright_python

DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
LOOKS = {
    "light": {"viewport": DESKTOP, "color_scheme": "light"},
    "dark": {"viewport": DESKTOP, "color_scheme": "dark"},
    "phone": {"viewport": PHONE, "color_scheme": "light"},
}
AXE = Path(axe_playwright_python.__file__).parent / "axe.min.js"
#: Rules that Django's own pages break, which this app does not write: (rule, why it is left).
LEFT = {
    "region": "Django's skip link and messages lie outside its landmarks",
    "heading-order": "Django's side bar and forms skip levels",
}
#: The rules that judge colours: other colours can break no others.
COLOURS = ("color-contrast", "link-in-text-block")
#: What stands on each page of the admin.
FRAME = ("#header", "#nav-sidebar")
#: Only the violations leave the browser: axe's whole answer is larger than the page.
FIND = """async ([left, only, exclude]) => {
  const rules = Object.fromEntries(left.map((id) => [id, {enabled: false}]));
  const options = {resultTypes: ["violations"], ...(only.length ? {runOnly: only} : {rules})};
  const { violations } = await axe.run({exclude: exclude}, options);
  return violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.target} ${node.html.slice(0, 120)}`));
}"""
END_TRANSITIONS = """() => document.getAnimations().filter((each) => each instanceof CSSTransition)
  .forEach((each) => each.finish())"""
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
#: The elements that reach beyond the window of a desktop.
TOO_WIDE = """() => document.documentElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll("body *")]
  .filter((node) => node.getBoundingClientRect().right > innerWidth + 1 && !node.closest(".tq-scroll"))
  .map((node) => `${node.tagName}.${node.className}#${node.id}`).concat("page")"""


def change_look(page, look: str) -> None:
    """Show the page that is open in another look, without the transition between the colours."""
    page.emulate_media(color_scheme=LOOKS[look]["color_scheme"])
    page.set_viewport_size(LOOKS[look]["viewport"])
    page.evaluate(END_TRANSITIONS)


def barriers(page, *, only: Sequence[str] = (), left: Sequence[str] = (), exclude: Sequence[str] = ()) -> list[str]:
    """Return what axe finds on a page: by all rules, by ``only`` some, or by all but those ``left`` out."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    return page.evaluate(FIND, [[*LEFT, *left], list(only), list(exclude)])


def misfits(page) -> list[str]:
    """Return what does not fit a phone."""
    found = {what: page.evaluate(script) for what, script in (("wide", WIDE), ("broken", BROKEN), ("small", SMALL))}
    return [f"{what}: {name}" for what, names in found.items() for name in names[:5]]


def problems_in_all_looks(
    page, picture: Callable[[str], None] | None = None, repeated: Sequence[str] = FRAME
) -> list[str]:
    """Return the barriers of an open page in each look, and what is wider than the window of a desktop.

    Three quarters of axe's time are the contrast of each text. A page of which ``picture`` saves each look is judged
    whole, by all rules that a look can change. On the others the colours are judged without what is ``repeated``
    elsewhere, and not on a phone, which has those of the light look.
    """
    found = []
    for look in LOOKS:
        change_look(page, look)
        if look != "light" and page.locator("#tq-overview").count():
            page.reload()  # its charts would be drawn again at some later time
            page.wait_for_selector("#tq-overview[data-drawn]")
        problems = barriers(page, left=COLOURS) if look != "dark" else []
        if picture or look != "phone":
            problems += barriers(page, only=COLOURS, exclude=() if picture else repeated)
        if look != "phone":
            problems += [f"wide: {node}" for node in page.evaluate(TOO_WIDE)]
        if picture:
            picture(look)
        found += [f"{look}: {each}" for each in problems]
    return found
