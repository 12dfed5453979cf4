"""``taskqueue key`` creates, lists and revokes API keys."""

import json

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from queue_app.models import ApiKey, AuditEntry
from queue_app.services.control.api_keys import find_key, forget_keys


def test_a_key_from_its_making_to_its_end(db, capsys):
    forget_keys()
    User.objects.create_user("ann")
    call_command("taskqueue", "key", "create", "ann", "--scope", "view_task", "--for", "90d", "--json")
    made = json.loads(capsys.readouterr().out)
    assert find_key(made["key"]).scopes == ["view_task"]
    call_command("taskqueue", "key", "list")
    output = capsys.readouterr().out
    assert made["prefix"] in output
    assert made["key"] not in output
    call_command("taskqueue", "key", "revoke", made["prefix"])
    assert find_key(made["key"]) is None
    assert ApiKey.objects.get().expires_at is not None
    assert AuditEntry.objects.filter(via="command").count() == 2
    with pytest.raises((CommandError, SystemExit)):
        call_command("taskqueue", "key", "create", "nobody")
