"""Names of models, of their fields and of the fields' choices in the viewer's language.

Django derives the name of a field from its attribute, so no call of gettext in the models holds it. ``TEXTS`` lets
makemessages find the names that pages show; a test compares them with the pages.
"""

from typing import Final

from django.apps import apps
from django.utils.translation import gettext_lazy as _lazy
from django.utils.translation import gettext_noop as _noop

from queue_app.dashboard import translation

#: Models, in the singular and the plural.
TEXTS: Final = (
    _noop("task"), _noop("tasks"), _noop("workflow"), _noop("workflows"), _noop("task type"), _noop("task types"),
    _noop("dead letter"), _noop("dead letters"), _noop("queue"), _noop("queues"), _noop("worker"), _noop("workers"),
    _noop("schedule"), _noop("schedules"), _noop("limit"), _noop("limits"), _noop("priority policy"),
    _noop("priority policies"), _noop("runtime settings"), _noop("audit entry"), _noop("audit log"),
    _noop("operation"), _noop("operations"), _noop("saved view"), _noop("saved views"), _noop("API key"),
    _noop("API keys"), _noop("worker token"), _noop("worker tokens"), _noop("maintenance job"),
    _noop("maintenance jobs"), _noop("queue snapshot"), _noop("queue snapshots"), _noop("index"),
    # fields
    _noop("action"), _noop("active"), _noop("adaptive"), _noop("after"), _noop("anchor"), _noop("args"),
    _noop("arguments"), _noop("at"), _noop("attempts"), _noop("before"), _noop("by"), _noop("capabilities"),
    _noop("catch up"), _noop("catch up limit"), _noop("catch up seconds"), _noop("completed"),
    _noop("concurrency key"), _noop("condemned"), _noop("condemned because"), _noop("count"), _noop("cron"),
    _noop("description"), _noop("done"), _noop("ends at"), _noop("enqueued"), _noop("error"), _noop("every"),
    _noop("expire eagerly"), _noop("failed"), _noop("fair by"), _noop("fair weights"), _noop("grace seconds"),
    _noop("instant parameter"),
    _noop("instants"), _noop("jitter"), _noop("kind"), _noop("leases"), _noop("max concurrent"),
    _noop("max concurrent per user"), _noop("max in flight"), _noop("max length"), _noop("max pending per user"),
    _noop("max retries"), _noop("min concurrent"), _noop("min delay seconds"), _noop("name"), _noop("notes"),
    _noop("number"), _noop("of"), _noop("order"), _noop("overlap"), _noop("parameters"), _noop("parameters edited"),
    _noop("paused"), _noop("priority"), _noop("probe"), _noop("promote after seconds"), _noop("query"),
    _noop("rate burst"), _noop("rate count"), _noop("rate seconds"), _noop("reason"), _noop("retry delay"),
    _noop("reads encrypted"), _noop("scheduled"),
    _noop("scope"), _noop("shared"), _noop("stale after seconds"), _noop("starts at"), _noop("state"), _noop("target"),
    _noop("target id"), _noop("target seconds"), _noop("tasks done"), _noop("throttled until"), _noop("timeout"),
    _noop("timeout seconds"), _noop("user"), _noop("varies by"), _noop("via"), _noop("weight"), _noop("zone"),
)  # fmt: skip


def translate_names() -> None:
    """Show names and choices in the viewer's language. Migrations keep the English ones."""
    known, choices = frozenset(TEXTS), frozenset(translation.TEXTS)
    for model in apps.get_app_config("queue_app").get_models():
        options = model._meta  # noqa: SLF001 - Django documents it
        for name in ("verbose_name", "verbose_name_plural"):
            if (text := str(getattr(options, name))) in known:
                setattr(options, name, _lazy(text))
        for field in options.fields:
            if (text := str(field.verbose_name)) in known:
                field.verbose_name = _lazy(text)
            if field.choices and any(label in choices for _value, label in field.flatchoices):
                field.choices = [(value, _lazy(label)) for value, label in field.flatchoices]
