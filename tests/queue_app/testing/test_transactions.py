"""The same tests of a project in Django's test cases and under pytest, with and without a transaction around them."""

# ruff: noqa: PT009, PT027 - Django's test cases
from datetime import UTC, datetime

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.db.models.functions import Now
from django.tasks import TaskResultStatus
from django.test import TestCase, TransactionTestCase
from django.utils import timezone

from queue_app import Workflow, task
from queue_app.models import Task
from queue_app.testing import adrain, assert_workflow, drain, freeze, override_queue

FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL


@task(max_retries=2, retry_delay=10)
def greet(name):
    if not name:
        raise ValueError("nobody")
    return f"hello {name}"


@task(priority=-50)
def tidy():
    """Do nothing, later."""


@task(max_retries=0)
def add_groups(*names, fail=""):
    for name in names:
        Group.objects.create(name=name)
    if fail:
        raise ValueError(fail)


@task(max_retries=0)
def add_if_new(name):
    try:
        with transaction.atomic():
            Group.objects.create(name=name)
    except Exception:  # noqa: BLE001 - as in a project
        return False
    return True


@task(max_retries=0)
def swallow(name):
    try:
        Group.objects.create(name=name)
    except Exception:  # noqa: BLE001 - as in a project
        return "all is well"


@task(max_retries=0)
def leave_open():
    transaction.atomic().__enter__()
    Group.objects.create(name="lost")


@task(max_retries=0)
def add_and_greet(name):
    with transaction.atomic(durable=True):
        Group.objects.create(name=name)
        transaction.on_commit(lambda: greet.enqueue(name))


@task(max_retries=0)
async def count_groups():
    await Group.objects.acreate(name="counted")
    await greet.aenqueue("counted")
    return await Group.objects.acount()


@task(takes_context=True, max_retries=0)
def steps_in_atomic(context, *, deeper):
    if deeper:
        with transaction.atomic():
            return context.step("one", int)
    context.step("one", add_groups.func, "step")
    return context.step("two", int, atomic=True)


def names():
    return sorted(Group.objects.exclude(name__startswith="Task queue").values_list("name", flat=True))


class Forms:
    """What holds with and without a transaction around the test."""

    def test_what_is_enqueued_runs(self):
        result = greet.enqueue("ann")
        self.assertEqual([done.id for done in drain()], [result.id])
        result.refresh()
        self.assertEqual(result.return_value, "hello ann")
        self.assertEqual(drain(), [])

    def test_a_coroutine_runs_and_may_test(self):
        result = count_groups.enqueue()
        self.assertEqual(len(drain()), 2)
        result.refresh()
        self.assertEqual(result.return_value, len(Group.objects.all()))

    async def test_in_a_coroutine(self):
        await count_groups.aenqueue()
        self.assertEqual([done.status for done in await adrain()], [SUCCESSFUL] * 2)
        with freeze() as clock:
            result = await greet.aenqueue("")
            await adrain()
            clock.advance(10)
            await adrain(to_the_end=True)
        await result.arefresh()
        self.assertEqual((result.status, result.attempts), (FAILED, 3))
        self.assertEqual(await sync_to_async(names)(), ["counted"])

    def test_a_rolled_back_task_does_not_run(self):
        with transaction.atomic():
            greet.enqueue("ann")
            transaction.set_rollback(True)
        self.assertEqual(drain(), [])

    def test_what_a_failed_function_has_written_stays_as_in_a_worker(self):
        add_groups.enqueue("a", fail="no")
        add_if_new.enqueue("a")
        self.assertEqual([done.status for done in drain()], [FAILED, SUCCESSFUL])
        self.assertEqual(names(), ["a"])

    def test_an_open_transaction_is_a_failure_and_rolled_back(self):
        leave_open.enqueue()
        greet.enqueue("ann")
        broken, fine = drain()
        self.assertEqual((broken.status, fine.status), (FAILED, SUCCESSFUL))
        self.assertIn("TransactionLeftOpen", broken.errors[0].exception_class_path)
        self.assertEqual(names(), [])

    def test_hooks_of_a_task_run(self):
        add_and_greet.enqueue("ann")
        self.assertEqual([done.task.func for done in drain()], [add_and_greet.func, greet.func])

    def test_steps_know_a_transaction_of_their_task(self):
        results = [steps_in_atomic.enqueue(deeper=deeper) for deeper in (False, True)]
        drain()
        fine, refused = (steps_in_atomic.get_result(result.id) for result in results)
        self.assertEqual((fine.status, names()), (SUCCESSFUL, ["step"]))
        self.assertIn("StepRefused", refused.errors[0].exception_class_path)

    def test_the_database_goes_by_the_clock(self):
        with freeze(datetime(2031, 1, 2, tzinfo=UTC)) as clock:
            result = greet.enqueue("ann")
            clock.advance(5)
            drain()
            self.assertEqual(Task.objects.filter(finished_at=Now()).get().id, result.row.id)
            self.assertEqual(result.row.finished_at, clock.now)
        with connection.cursor() as cursor:
            cursor.execute("SELECT now() - pg_catalog.now() = interval '0', current_setting('search_path')")
            is_real, path = cursor.fetchone()
        self.assertTrue(is_real)
        self.assertNotIn("taskqueue", path)
        self.assertLess(abs(result.row.created_at - timezone.now()).days, 9999)

    def test_old_tasks_rise_although_the_tables_were_emptied(self):
        with freeze() as clock:
            tidy.enqueue()
            clock.advance(601)
            greet.enqueue("ann")
            self.assertEqual([done.task.func for done in drain()], [tidy.func, greet.func])

    def test_workflows(self):
        flow = Workflow("greetings")
        flow.add(tidy, after=[flow.add(greet, "ann")])
        flow.enqueue()
        drain()
        assert_workflow(flow, "completed", {"greet": "completed", "tidy": "completed"})

    def test_limits_end_with_their_block(self):
        with freeze():
            with override_queue(limits={"default": {"rate_count": 1, "rate_seconds": 60}}):
                for name in "abc":
                    greet.enqueue(name)
                self.assertEqual(len(drain()), 1)
            self.assertEqual(len(drain()), 2)

    def test_eager_tasks_run_where_they_are_enqueued(self):
        with override_queue(eager=True), transaction.atomic():
            transaction.on_commit(lambda: Group.objects.create(name="committed"))
            self.assertEqual(greet.enqueue("ann").return_value, "hello ann")
            self.assertEqual(names(), [], "the hook waits for its own commit")
            (many,) = greet.get_backend().enqueue_many(greet, [(("b",), {})])
            self.assertEqual(many.return_value, "hello b")


class WithTransaction(Forms, TestCase):
    """Nothing commits."""

    def test_drain_calls_the_hooks_that_wait_for_a_commit_once(self):
        transaction.on_commit(lambda: greet.enqueue("ann"))
        with self.captureOnCommitCallbacks(execute=True):
            transaction.on_commit(lambda: greet.enqueue("bob"))
            self.assertEqual([done.args for done in drain()], [["ann"], ["bob"]])
        self.assertEqual(drain(), [])

    def test_an_error_of_a_hook_reaches_the_test_unless_it_is_robust(self):
        transaction.on_commit(lambda: 1 / 0, robust=True)
        self.assertEqual(drain(), [])
        transaction.on_commit(lambda: 1 / 0)
        with self.assertRaises(ZeroDivisionError):
            drain()

    def test_an_error_of_the_database_undoes_the_attempt_and_nothing_else(self):
        Group.objects.create(name="a")
        for result in (add_groups.enqueue("b", "a"), swallow.enqueue("a"), greet.enqueue("ann")):
            self.assertEqual(result.status, TaskResultStatus.READY)
        failed, swallowed, fine = drain()
        self.assertIn("IntegrityError", failed.errors[0].exception_class_path)
        self.assertIn("TransactionLeftOpen", swallowed.errors[0].exception_class_path)
        self.assertEqual((fine.status, names()), (SUCCESSFUL, ["a"]))


class WithoutTransaction(Forms, TransactionTestCase):
    """Each statement commits, and the tables are emptied after each test."""


@pytest.mark.django_db
def test_under_pytest_no_fixture_is_needed():
    greet.enqueue("ann")
    assert [done.return_value for done in drain()] == ["hello ann"]


@pytest.mark.django_db(transaction=True)
def test_under_pytest_in_a_test_that_commits(frozen_time, task_queue):
    result = greet.enqueue("")
    drain()
    frozen_time.advance(10)
    assert len(drain()) == 1
    assert result.explain().status == "scheduled"
