"""The addresses of the reference project."""


def test_the_root_leads_to_the_admin(client):
    response = client.get("/")
    assert (response.status_code, response.url) == (302, "/admin/")
