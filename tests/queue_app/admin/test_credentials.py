"""API keys and worker tokens: made by staff, shown once, never stored, revoked, and recorded."""

import html
import re

import pytest
from django.contrib.auth.models import User

from queue_app.exceptions import TokenRefused
from queue_app.models import ApiKey, AuditEntry, Worker, WorkerToken
from queue_app.models.worker import WorkerStatus
from queue_app.remote import tokens
from queue_app.services.control.api_keys import PURPOSES, create_key, find_key, forget_keys
from tests.support.factories import StaffFactory, WorkerFactory
from tests.support.pages import CONFIRMED, text_of

ADMIN = "/admin/queue_app"
KEY = {"name": "reports", "scopes": ["read"], "lifetime": "2592000", "reason": "weekly report"}
TOKEN = {"name": "renderer", "queues": "video, audio", "capabilities": "gpu", "max_in_flight": "5", "lifetime": "0"}


def secret_of(answer):
    assert answer.status_code == 200
    return re.search(r'<code id="tq-secret">([^<]+)</code>', answer.content.decode()).group(1)


@pytest.fixture
def keeper(client):
    """A member of staff who may make and revoke both, and is no superuser."""
    codenames = [f"{verb}_{model}" for verb in ("view", "add", "change") for model in ("apikey", "workertoken")]
    client.force_login(StaffFactory(username="kim", permissions=[*codenames, "view_auditentry", "view_task"]))
    return client


@pytest.fixture(autouse=True)
def no_cached_keys():
    forget_keys()
    yield
    forget_keys()


def test_a_key_is_shown_once_and_works_for_its_maker(keeper):
    answer = keeper.post(f"{ADMIN}/apikey/add/", KEY)
    secret = secret_of(answer)
    assert "no-store" in answer["Cache-Control"]
    key = find_key(secret)
    assert (key.user.username, key.scopes, key.created_by) == ("kim", list(PURPOSES["read"]), "kim")
    assert key.expires_at is not None
    for page in ("apikey/", f"apikey/{key.pk}/change/", "auditentry/"):
        text = keeper.get(f"{ADMIN}/{page}").content.decode()
        assert secret not in text
        assert key.digest not in text
    assert secret not in str(list(AuditEntry.objects.values()))


def test_the_form_names_no_user_ticks_nothing_and_ends_the_key(staff):
    page = text_of(staff.get(f"{ADMIN}/apikey/add/"))
    assert "superuser" not in re.search(r'<input[^>]*name="username"[^>]*>', page)[0]
    assert re.findall(r'name="scopes" value="(\w+)"', page) == ["read", "submit", "operate", "administer", "work"]
    assert re.search(r'value="work"[^>]* disabled', page), "that needs a worker token"
    assert "checked" not in page.partition('name="scopes"')[2].partition("lifetime")[0]
    assert '<option value="7776000" selected>90 days' in page
    for missing in ("username", "scopes", "lifetime"):
        form = {name: value for name, value in (KEY | {"username": "superuser"}).items() if name != missing}
        assert "This field is required." in text_of(staff.post(f"{ADMIN}/apikey/add/", form)), missing
    work = KEY | {"username": "superuser", "scopes": ["work"]}
    assert "is not a scope" in text_of(staff.post(f"{ADMIN}/apikey/add/", work))
    assert not ApiKey.objects.exists()


def test_a_key_without_a_scope_may_do_nothing(client, django_user_model):
    boss = django_user_model.objects.create_superuser("boss")
    for scopes, status in ((None, 200), (["read"], 200), (["submit"], 403), ([], 403)):
        secret = create_key(boss, "program", scopes=scopes)[1]
        assert client.get("/api/v1/queues", headers={"Authorization": f"Bearer {secret}"}).status_code == status, scopes


def test_only_superusers_make_keys_for_others(keeper, staff):
    User.objects.create_user("ann")
    secret_of(keeper.post(f"{ADMIN}/apikey/add/", KEY | {"username": "superuser"}))
    assert ApiKey.objects.get().user.username == "kim", "the field is ignored"
    key = find_key(secret_of(staff.post(f"{ADMIN}/apikey/add/", KEY | {"username": "ann"})))
    assert (key.user.username, key.created_by) == ("ann", "superuser")
    assert '<option value="ann">' in staff.get(f"{ADMIN}/apikey/add/").content.decode(), "names to pick from"
    refused = html.unescape(staff.post(f"{ADMIN}/apikey/add/", KEY | {"username": "anne"}).content.decode())
    assert "There is no user with this name. Did you mean 'ann'?" in refused


def test_a_revoked_key_is_refused_and_the_audit_log_says_why(keeper):
    secret = secret_of(keeper.post(f"{ADMIN}/apikey/add/", KEY))
    key = find_key(secret)
    keeper.post(f"{ADMIN}/apikey/{key.pk}/revoke/", CONFIRMED | {"reason": "left the company"})
    assert find_key(secret) is None
    made, revoked = AuditEntry.objects.order_by("id")
    assert (made.action, made.reason, made.after["scopes"]) == ("apikey.add", "weekly report", key.scopes)
    assert (revoked.action, revoked.reason) == ("apikey.revoke", "left the company")
    assert "revoked" in keeper.get(f"{ADMIN}/apikey/").content.decode()
    keeper.post(f"{ADMIN}/apikey/{key.pk}/revoke/", CONFIRMED)
    assert AuditEntry.objects.count() == 2, "revoking again changes nothing"


def test_a_token_is_made_rotated_and_revoked(keeper, django_capture_on_commit_callbacks):
    first = secret_of(keeper.post(f"{ADMIN}/workertoken/add/", TOKEN))
    token = tokens.authenticate(first)
    assert (token.queues, token.capabilities, token.max_in_flight) == (["audio", "video"], ["gpu"], 5)
    second = secret_of(keeper.post(f"{ADMIN}/workertoken/{token.pk}/rotate/", {"overlap": "0"}))
    assert tokens.authenticate(second).pk == token.pk
    with pytest.raises(TokenRefused):
        tokens.authenticate(first)
    worker = WorkerFactory(token_id=token.pk)
    with django_capture_on_commit_callbacks(execute=True):
        keeper.post(f"{ADMIN}/workertoken/{token.pk}/revoke/", CONFIRMED)
    with pytest.raises(TokenRefused):
        tokens.authenticate(second)
    assert Worker.objects.get(pk=worker.pk).status == WorkerStatus.DEAD
    assert [entry.action for entry in AuditEntry.objects.order_by("id")] == [
        "workertoken.add", "workertoken.rotate", "workertoken.revoke",
    ]  # fmt: skip
    keeper.post(f"{ADMIN}/workertoken/{token.pk}/rotate/")
    assert AuditEntry.objects.count() == 3, "a revoked token gets no new secret"


@pytest.mark.parametrize(
    "wrong", [{"name": ""}, {"queues": "no spaces here"}, {"max_in_flight": "0"}, {"reason": "\x00"}]
)
def test_an_invalid_token_is_refused_beside_its_field(keeper, wrong):
    answer = keeper.post(f"{ADMIN}/workertoken/add/", TOKEN | wrong)
    assert "errorlist" in answer.content.decode()
    assert not WorkerToken.objects.exists()


def test_a_name_is_taken_once(keeper):
    secret_of(keeper.post(f"{ADMIN}/workertoken/add/", TOKEN))
    assert "There is a token" in keeper.post(f"{ADMIN}/workertoken/add/", TOKEN).content.decode()


@pytest.mark.parametrize("model", ["apikey", "workertoken"])
def test_without_the_permission_nothing_is_made_or_revoked(model, client_of, staff):
    secret_of(staff.post(f"{ADMIN}/{model}/add/", {**KEY, **TOKEN, "scopes": ["submit"], "username": "superuser"}))
    found = (ApiKey if model == "apikey" else WorkerToken).objects.get()
    viewer = client_of("viewer")
    assert viewer.get(f"{ADMIN}/{model}/add/").status_code == 403
    assert viewer.post(f"{ADMIN}/{model}/add/", KEY | TOKEN).status_code == 403
    assert viewer.post(f"{ADMIN}/{model}/{found.pk}/revoke/").status_code == 403
    if model == "workertoken":
        assert viewer.post(f"{ADMIN}/{model}/{found.pk}/rotate/").status_code == 403


def test_the_form_begins_in_its_first_field_and_marks_what_is_required(staff):
    form = text_of(staff.get(f"{ADMIN}/apikey/add/")).partition('id="content-main"')[2]
    assert re.search(r'<input[^>]*name="username"[^>]* autofocus', form)
    row = r'<div class="form-row field-[^"]* required">\s*'
    needed = re.findall(row + r'(?:<label for="id_|<fieldset[^>]*><legend>)(\w+)', form)
    assert needed == ["username", "name", "What", "lifetime"]
