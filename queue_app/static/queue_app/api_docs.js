"use strict";
const place = document.getElementById("api");
window.SwaggerUIBundle({
  url: place.dataset.schema,
  domNode: place,
  deepLinking: true,
  requestInterceptor: (request) => {
    const cookie = document.cookie.split("; ").find((part) => part.startsWith("csrftoken="));
    if (cookie) request.headers["X-CSRFToken"] = cookie.slice("csrftoken=".length);
    return request;
  },
});
