"""Loading the scripts: each has all functions that it uses, and no others."""

import re

import pytest

from queue_app.index import scripts
from tests.support.leases import restore
from tests.support.scene import Scene


@pytest.mark.parametrize("name", ["claim", "release", "push", "generation", "lock"])
def test_a_script_holds_the_shared_functions_that_it_uses_and_no_others(name: str):
    text = re.sub(r"--.*", "", scripts.source(name))
    defined = re.findall(r"^local function (\w+)", text, re.MULTILINE)
    assert len(defined) == len(set(defined))
    assert [function for function in defined if len(re.findall(rf"\b{function}\b", text)) < 2] == []
    assert "--!" not in scripts.source(name)


def test_every_script_can_be_loaded(scene: Scene):
    for name in scripts.NAMES:
        scene.index._client.script_load(scripts.source(name))


@pytest.mark.parametrize("how", ["claimed", "restored"])
def test_leases_are_a_table_however_few_they_are(scene: Scene, how: str):
    """A hash of up to some hundred entries would be read through for each task that is looked up in it."""
    scene.push(scene.task("x"), scene.task("y", 1))
    if how == "claimed":
        assert scene.claim(scene.worker(), 1) == "x"
    else:
        task = scene.task("z")
        restore(scene.index, [(task.id, task.lane)])
    client, leases = scene.index._client, scene.index.keys.leases
    assert client.object("encoding", leases) == b"hashtable"
    assert client.hlen(leases) == 1
    scene.check()
