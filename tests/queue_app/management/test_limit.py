"""``taskqueue limit``: set limits and bands by name."""

import pytest

from queue_app.models import AuditEntry, Limit, Queue, RuntimeSettings
from tests.queue_app.management.test_taskqueue import call


def test_limit_sets_what_the_admin_can_set(engine):
    text = ["everything.max_concurrent=40", "everything.adaptive=vegas", "queue:mail.max_concurrent=5"]
    text += ["type:shop.tasks.export.rate_count=10", "type:shop.tasks.export.rate_seconds=60"]
    text += ["band:low.promote_after_seconds=90"]
    code, said = call("limit", *text, "--reason", "more memory", "--as", "ops")
    assert (code, said.strip()) == (0, "set: low, runtime settings, mail, type shop.tasks.export"), said
    assert RuntimeSettings.objects.values_list("max_concurrent", "adaptive").get() == (40, "gradient2")
    assert Queue.objects.get(pk="mail").max_concurrent == 5
    assert Limit.objects.get().rate_count == 10
    entries = AuditEntry.objects.values_list("target", "by", "via", "reason")
    assert set(entries) == {
        (target, "ops", "command", "more memory") for target in ("prioritypolicy", "runtimesettings", "queue", "limit")
    }
    assert call("limit", "queue:mail.max_concurrent=none", "everything.adaptive=none")[0] == 0
    assert RuntimeSettings.objects.get().adaptive == "", "fixed again"
    assert Queue.objects.get(pk="mail").max_concurrent is None


@pytest.mark.parametrize(
    "wrong",
    [
        ["max_concurrent=5"],
        ["planet:mail.max_concurrent=5"],
        ["queue:.max_concurrent=5"],
        ["queue:mail.max_concurrent=many"],
        ["queue:mail.max_concurrent=0"],
        ["queue:mail.name=post"],
        ["queue:mail.paused=true"],
        ["type:shop.tasks.export.created_at=now"],
        ["everything.adaptive=gradient2"],
        ["band:urgent.promote_after_seconds=5"],
        ["queue:mail.max_concurrent=5", "everything.max_concurrent=-1"],
        [],
    ],
)
def test_limit_refuses_invalid_settings(engine, wrong):
    before = (Queue.objects.count(), Limit.objects.count())
    code, said = call("limit", *wrong)
    assert code == 2, said
    assert (Queue.objects.count(), Limit.objects.count()) == before
    assert not AuditEntry.objects.exists()
