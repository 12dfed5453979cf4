"""Every page in a language whose words stand in brackets: text without brackets cannot be translated.

What people and programs wrote stays as it is: names, parameters, errors, and what the log, the history and ticks keep.
"""

import inspect
import re
from html.parser import HTMLParser

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission, User
from django.contrib.postgres.fields import ArrayField
from django.db.models import CharField, JSONField, TextField
from django.test import Client
from django.utils import translation
from django.utils.translation import trans_real

from queue_app import Workflow, registry
from queue_app.adaptive.adapt import adapt_limits
from queue_app.core.limits import ALGORITHM, ORDERS
from queue_app.core.sentence import sentence
from queue_app.core.states import Status
from queue_app.diagnose import stalls
from queue_app.diagnose.stalls import Stall
from queue_app.models import Queue, Task
from tests.browser.test_admin import shop  # noqa: F401 - a fixture
from tests.browser.test_barriers import everything  # noqa: F401 - a fixture
from tests.support.factories import move
from tests.workers import chores

pytestmark = pytest.mark.django_db(transaction=True)


class Pseudo:
    """A catalogue that puts each text into brackets, unless it consists of names for values."""

    def to_language(self):
        return "xx"

    def language(self):
        return "xx"

    def gettext(self, message):
        text = message.rpartition("\x04")[2]
        words = re.sub(r"%\(\w+\)\w|%[sd]|\{\w*\}", "", text)
        return f"⟦{text}⟧" if re.search(r"[A-Za-z]", words) else text

    def ngettext(self, singular, plural, number):
        return self.gettext(singular if number == 1 else plural)


class Reader(HTMLParser):
    """Collects the text outside brackets, by block, with what is read out or shown on hover."""

    INLINE = frozenset({"a", "abbr", "b", "code", "em", "i", "kbd", "label", "small", "span", "strong", "time", "wbr"})
    HIDDEN = frozenset({"script", "style", "pre", "code", "textarea"})
    ATTRIBUTES = ("aria-label", "title", "placeholder", "alt", "data-label", "data-held", "data-away", "data-empty")

    def __init__(self):
        super().__init__()
        self.found, self.depth, self.hidden = [], 0, 0

    def handle_starttag(self, tag, attrs):
        if tag not in self.INLINE:
            self.depth = 0
        self.hidden += tag in self.HIDDEN
        values = dict(attrs)
        names = [*self.ATTRIBUTES, *(["value"] if tag == "input" and values.get("type") == "submit" else [])]
        for name in names:
            if values.get(name):
                self.keep(values[name], 0)

    def handle_endtag(self, tag):
        if tag not in self.INLINE:
            self.depth = 0
        self.hidden -= tag in self.HIDDEN

    def handle_data(self, data):
        if not self.hidden:
            self.depth = self.keep(data, self.depth)

    def keep(self, text, depth):
        outside = []
        for letter in text:
            depth += (letter == "⟦") - (letter == "⟧")
            outside.append(letter if depth <= 0 and letter != "⟧" else " ")
            depth = max(0, depth)
        if left := " ".join("".join(outside).split()):
            self.found.append(left)
        return depth


#: An id, or its first digits as pages show it.
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{8}\b")


def words(text):
    return set(re.findall(r"[A-Za-z]{2,}", UUID.sub("", str(text))))


#: Fields that hold words of this app, which pages must translate.
OWN = {"status", "state", "kind", "cause", "progress", "error", "overlap", "catch_up"}
#: Units, products, zones, identifiers, and the parts of the log that stay as they were written.
NAMES = words("ms min UTC Redis PostgreSQL Django API JSON JavaScript CPU MB KB GB Europe Berlin") | words(
    [ALGORITHM, *ORDERS]
)


def names():
    """Return the words that people and other apps have given: in tables, code, and the names of permissions."""
    found = set(NAMES)
    for model in [*apps.get_app_config("queue_app").get_models(), User]:
        fields = [
            field.name
            for field in model._meta.fields
            if isinstance(field, CharField | TextField | JSONField | ArrayField)
            and not field.choices and field.name not in OWN
        ]  # fmt: skip
        for row in model._base_manager.values_list(*fields):
            found.update(*map(words, row))
    others = [config for config in apps.get_app_configs() if config.name.startswith("taskqueue_project")]
    for model in (model for config in others for model in config.get_models()):
        found |= words(model._meta.verbose_name) | words(model._meta.verbose_name_plural)
    found |= words([config.verbose_name for config in others])
    found |= words(registry.known_types()) | words(list(Permission.objects.values_list("codename")))
    functions = [registry.get(name).func for name in registry.known_types()]
    return found | {parameter for each in functions for parameter in inspect.signature(each).parameters}


@pytest.fixture
def brackets(settings, monkeypatch):
    monkeypatch.setitem(trans_real._translations, "xx", Pseudo())
    settings.LANGUAGE_CODE = "xx"
    with translation.override("xx"):
        yield


@pytest.fixture
def more(everything):  # noqa: F811
    """Add what is seldom: a workflow that is held, a stall, an adaptive limit, and pages without a link in the menu."""
    flow = Workflow("order")
    pay = flow.add(chores.echo, 1)
    flow.add(chores.echo, 2, after=[pay])
    flow.enqueue()
    first, second = Task.objects.filter(workflow_id=flow.id).order_by("id")
    move(first, Status.DEAD_LETTER, started_at=first.created_at)
    adaptive = Queue.objects.create(name="adapting", adaptive="gradient2", min_concurrent=1, max_concurrent=9)
    adapt_limits()
    about = sentence("A task was due at %(time)s, and the scheduler has not queued it.", time="2026-01-01 00:00:00 UTC")
    steps = sentence("%(time)s: %(what)s.", time="2026-01-01 00:00:00 UTC", what=sentence("rebuilt the index"))
    stalls.write([Stall("not_due", "", about, "2026-01-01T00:00:00+00:00", steps)])
    return everything | {
        "adaptive": f"queue/{adaptive.pk}/change/",
        "workflows": "workflow/",
        "workflow": f"workflow/{flow.id}/change/",
        "blocked": f"task/{second.pk}/change/",
        "week": "schedule/week/",
        "what if": "operation/what-if/",
        "matching": "deadletter/matching/",
        "history": everything["failed"].replace("change", "history"),
        "edit": everything["failed"].replace("change", "run-again"),
        "users": "taskstats/?kind=user",
        "new schedule": "schedule/add/",
        "all tasks of a search": "task/?q=nothing&sort=slowest",
    }


def test_every_text_can_be_translated(more, brackets):
    client = Client()
    client.force_login(User.objects.get())
    known = {word.lower() for word in names()}
    left = {}
    for name, path in more.items():
        answer = client.get(f"/admin/queue_app/{path}", follow=True)
        assert answer.status_code == 200, name
        reader = Reader()
        reader.feed(answer.content.decode())
        if texts := {text for text in reader.found if words(text.lower()) - known}:
            left[name] = texts
    assert left == {}
