"""Promotion and maintenance jobs in the admin."""

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from queue_app.core.priorities import Band
from queue_app.models import MaintenanceJob, Task
from queue_app.services.upkeep.maintenance import run_overdue

TASKS = reverse("admin:queue_app_task_changelist")


@pytest.mark.parametrize("page", ["list", "task", "type"])
def test_pages_show_both_bands_of_a_promoted_task(staff, make_task, page):
    task = make_task(priority=Band.LOW)
    address = {
        "list": TASKS,
        "task": reverse("admin:queue_app_task_change", args=[task.pk]),
        "type": reverse("admin:queue_app_taskstats_type", args=[task.task_type]),
    }[page]
    assert "↑" not in staff.get(address).content.decode()
    Task.objects.filter(pk=task.pk).update(queued_at=timezone.now() - timedelta(seconds=1900))
    page = staff.get(address).content.decode()
    assert '<span class="tq-label tq-band-high">high</span>' in page
    assert "↑ low" in page


def test_the_jobs_show_their_last_success(staff):
    run_overdue()
    MaintenanceJob.objects.filter(pk="purge").update(succeeded_at=None, error="RuntimeError: <b>no</b>")
    page = staff.get(reverse("admin:queue_app_maintenancejob_changelist")).content.decode()
    for name in ("promote", "expire", "snapshot", "purge"):
        assert name in page
    assert "just now" in page
    assert "never" in page
    assert "RuntimeError: &lt;b&gt;no&lt;/b&gt;" in page


@pytest.mark.parametrize("view", ["change", "delete"])
def test_the_jobs_cannot_be_edited(staff, view):
    MaintenanceJob.objects.create(name="purge")
    page = staff.post(reverse(f"admin:queue_app_maintenancejob_{view}", args=["purge"]), {"name": "x", "post": "yes"})
    assert page.status_code == 403
    assert MaintenanceJob.objects.get().name == "purge"
