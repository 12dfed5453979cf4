// Sends a form as JSON, and shows the answer below it.
"use strict";

async function send(form) {
  const body = form.elements.body;
  const answer = form.querySelector(".answer");
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    const headers = { Accept: "application/json", "X-CSRFToken": form.elements.csrfmiddlewaretoken.value };
    if (form.dataset.method === "PATCH") {
      headers["If-Match"] = "*"; // the person has just read the current version
    }
    if (body) {
      headers["Content-Type"] = "application/json";
    }
    const response = await fetch(form.dataset.path, {
      method: form.dataset.method,
      headers,
      body: body ? body.value : undefined,
    });
    const text = await response.text();
    let shown = text;
    try {
      shown = JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      // not JSON: show the text
    }
    answer.textContent = `${response.status} ${response.statusText}\n${shown}`;
  } catch (error) {
    answer.textContent = `No answer: ${error.message}`;
  } finally {
    answer.hidden = false;
    button.disabled = false;
  }
}

// Leave empty filters out of the address: the API would take them for values.
for (const form of document.querySelectorAll("form[data-filters]")) {
  form.addEventListener("submit", () => {
    for (const field of form.querySelectorAll("input")) field.disabled = !field.value;
  });
}
for (const form of document.querySelectorAll("form[data-method]")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(form);
  });
}
