"""The addresses of the reference project, and a view to compare with."""

from django.db import connection
from django.urls import include, path
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from queue_app.api.access import MaySubmit
from queue_app.api.authentication import KeyAuthentication
from queue_app.core.ids import uuid7

_INSERT = "INSERT INTO queue_app_taskpayload (task_id, args, parameters) VALUES (%s, '[]', %s)"


class InsertView(APIView):
    """What any such service must do: check the key, read JSON, insert a row and commit, answer JSON."""

    authentication_classes = (KeyAuthentication,)
    permission_classes = (MaySubmit,)

    def post(self, request: Request) -> Response:
        """Store the body."""
        task_id = uuid7()
        with connection.cursor() as cursor:
            cursor.execute(_INSERT, [task_id, "{}"])
        return Response({"task_id": task_id, "asked": request.data}, status=201)


urlpatterns = [path("bench/insert", InsertView.as_view()), path("", include("taskqueue_project.urls"))]
