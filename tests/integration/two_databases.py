"""Settings of processes that hold users in one database and the queue in another; ROUTER names the class."""

import os

import dj_database_url

from taskqueue_project.settings.test import *  # noqa: F403

DATABASES = {name: dj_database_url.parse(os.environ[f"{name.upper()}_URL"]) for name in ("default", "queue")}
DATABASE_ROUTERS = [f"tests.integration.two_databases.{os.environ['ROUTER']}"]
TASKQUEUE["DATABASE_ALIAS"] = "queue"  # noqa: F405


class Routed:
    """Read and write the queue's models in its database, and all others in the default one."""

    def db_for_read(self, model, **hints):
        return "queue" if model._meta.app_label == "queue_app" else "default"

    db_for_write = db_for_read


class UsersOnDefault(Routed):
    """The router of Django's documentation: the tables of auth and content types are in one database only."""

    def allow_relation(self, one, other, **hints):
        return True if {one._meta.app_label, other._meta.app_label} & {"auth", "contenttypes"} else None

    def allow_migrate(self, db, app_label, model_name=None, **hints):
        return db == "default" if app_label in {"auth", "contenttypes", "admin", "authtoken"} else None


class QueueOnly(Routed):
    """The queue's tables are in their database only; all other tables are in both."""

    def allow_migrate(self, db, app_label, model_name=None, **hints):
        return db == "queue" if app_label == "queue_app" else None


class Apart(Routed):
    """Each database has its own tables and no others."""

    def allow_migrate(self, db, app_label, model_name=None, **hints):
        return (db == "queue") == (app_label == "queue_app")
