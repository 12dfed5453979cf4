"""The page of an adaptive limit: its value, why, and a chart that the server draws."""

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from queue_app.models import Limit, LimitStep, Queue, RuntimeSettings
from queue_app.services.control.adapt import adapt_limits


def page(row) -> str:
    return reverse(f"admin:queue_app_{row._meta.model_name}_change", args=[row.pk])


def steps(gate: str, *values: int) -> None:
    """Write a history of one value a minute."""
    now = timezone.now()
    for number, value in enumerate(values):
        at = now - timedelta(minutes=len(values) - number)
        LimitStep.objects.create(
            gate=gate,
            at=at,
            stepped_at=at + timedelta(minutes=1),
            value=value,
            running=value - 1,
            run_p50=0.2 * value,
            failures=number % 2,
            cause="slow",
            reason=f"Run times are {value}.0 times their baseline.",
            since=at,
        )


@pytest.mark.parametrize("kind", ["queue", "type", "everything"])
def test_the_page_shows_value_reason_and_history(staff, kind):
    values = {"adaptive": "gradient2", "min_concurrent": 2, "max_concurrent": 40, "current_concurrent": 12}
    if kind == "queue":
        row = Queue.objects.create(name="mail", **values)
    elif kind == "type":
        row = Limit.objects.create(scope="type", name="<b>mail</b>", **values)
    else:
        row, _ = RuntimeSettings.objects.update_or_create(pk=1, defaults=values)
    steps(row.gate.index_name, 8, 10, 10, 12)
    found = staff.get(page(row))
    text = found.content.decode()
    assert "12 of at most 40 just now, since" in text
    assert "Run times are 12.0 times their baseline." in text
    assert [step.value for step, _reason in found.context["changes"]] == [12, 10, 8]
    assert text.count("<polyline") == 3
    assert "<b>mail" not in text
    points = [tuple(map(float, point.split(","))) for point in found.context["chart"].limit.split()]
    assert all(0 <= x <= 600 and 0 <= y <= 120 for x, y in points)
    assert min(y for _, y in points) == 0, "the highest value is at the top"


def test_a_fixed_limit_has_no_chart(staff):
    queue = Queue.objects.create(name="mail", max_concurrent=5)
    steps("q:mail", 8)
    assert "tq-adaptive" not in staff.get(page(queue)).content.decode()


def test_before_the_first_step_the_page_says_so(staff):
    queue = Queue.objects.create(name="mail", max_concurrent=5, adaptive="gradient2")
    assert "5 of at most 5 just now: no scheduler has judged it yet." in staff.get(page(queue)).content.decode()


def test_the_form_of_a_limit_with_the_name_of_a_former_algorithm_keeps_it_adaptive(staff):
    queue = Queue.objects.create(name="mail", max_concurrent=5, adaptive="vegas")
    form = staff.get(page(queue)).context["adminform"].form
    assert form["adaptive"].value() == "gradient2"
    assert '<option value="gradient2" selected>' in str(form["adaptive"])


def test_staff_make_a_limit_adaptive_and_fixed_again(staff):
    queue = Queue.objects.create(name="mail", max_concurrent=5)
    form = {"adaptive": "gradient2", "min_concurrent": 2, "max_concurrent": 30, "order": "fifo", "fair_by": "user"}
    form |= {"fair_weights": "{}", "probe": "cpu", "varies_by": "", "reason": "The bank is slow."}
    assert staff.post(page(queue), form).status_code == 302
    adapt_limits()
    queue.refresh_from_db()
    assert (queue.cap, queue.probe) == (2, "cpu")
    assert staff.post(page(queue), form | {"adaptive": "", "min_concurrent": "", "probe": ""}).status_code == 302
    queue.refresh_from_db()
    assert queue.cap == 30
