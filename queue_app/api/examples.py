"""The same call in three languages, for the pages of the API."""

import json
from typing import Any

KEY = "tq_…"


def examples(method: str, url: str, body: Any = None) -> list[tuple[str, str]]:
    """Return (language, code) of a call with an API key."""
    text = None if body is None else json.dumps(body, ensure_ascii=False)
    words = (text or "").replace("'", "'\\''")
    curl = [f"curl -X {method} '{url}'", f"-H 'Authorization: Bearer {KEY}'"]
    arguments = [f"    {url!r},", f'    headers={{"Authorization": "Bearer {KEY}"}},']
    options = [f"  method: {json.dumps(method)},", f"  headers: {{ Authorization: 'Bearer {KEY}' }},"]
    if text is not None:
        curl += ["-H 'Content-Type: application/json'", f"-d '{words}'"]
        arguments.append(f"    json={body!r},")
        options[1] = f"  headers: {{ Authorization: 'Bearer {KEY}', 'Content-Type': 'application/json' }},"
        options.append(f"  body: JSON.stringify({text}),")
    python = ["import requests", "", f"answer = requests.{method.lower()}(", *arguments, ")", "print(answer.json())"]
    script = [f"const answer = await fetch({json.dumps(url)}, {{", *options, "});", "console.log(await answer.json());"]
    return [("curl", " \\\n  ".join(curl)), ("Python", "\n".join(python)), ("JavaScript", "\n".join(script))]
