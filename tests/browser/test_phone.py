"""Pages on a phone, in German: no page is wider than the screen, and no word is broken by letter.

`test_barriers.py` looks at the English pages.
"""

import pytest

from tests.browser.looks import LOOKS, misfits
from tests.browser.test_admin import shop  # noqa: F401 - a fixture
from tests.browser.test_barriers import everything, seldom  # noqa: F401 - a fixture

pytestmark = pytest.mark.django_db(transaction=True)


def test_every_page_fits_a_phone_in_german(visit, everything, settings):  # noqa: F811
    settings.LANGUAGE_CODE = "de"
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
        if problems := misfits(page):
            found[name] = problems
    assert found == {}
    assert visitor.problems == []


def test_a_row_of_a_list_is_a_card(visit, everything):  # noqa: F811
    """The cells stand under each other with their names, also after an update; all rows can still be selected."""
    visitor = visit(**LOOKS["phone"])
    visitor.log_in("alice")
    page = visitor.page
    page.clock.install()
    visitor.go("task/")
    state = page.locator("#result_list tbody tr >> nth=0 >> .field-state")
    assert state.evaluate("(cell) => getComputedStyle(cell, '::before').content") == '"Status, attempt"'
    visitor.see("#result_list tbody[data-updated]")
    assert state.get_attribute("data-label") == "Status, attempt"
    page.check("#action-toggle")
    assert page.locator("#result_list tbody tr.selected").count() > 5
    visitor.go("")
    page.wait_for_selector("#tq-row-mail [data-label='Queued by band']")
    assert visitor.problems == []
