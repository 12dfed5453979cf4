/* The status of a task for its user: reloads the part that changes until the task has ended. Pages work without it. */
(function () {
  'use strict';
  const POLL_MS = 2000;
  const SLOW_MS = 15000; // after an error

  async function poll(node) {
    let pause = POLL_MS;
    if (!document.hidden) {
      try {
        const response = await fetch(node.dataset.taskStatus);
        if (!response.ok || response.redirected) throw new Error(String(response.status));
        const html = await response.text();
        const content = html.replace(/value="[^"]{32,}"/g, ''); // without the token of the form, which changes
        if (content !== node.dataset.shown) node.innerHTML = html; // rendered and escaped by the site's own server
        node.dataset.shown = content;
        if (response.headers.get('X-Task-Ended') === '1') return;
      } catch (error) {
        pause = SLOW_MS;
      }
    }
    setTimeout(poll, pause, node);
  }

  document.querySelectorAll('[data-task-status]:not([data-ended]):not([data-shown])').forEach((node) => {
    node.dataset.shown = ''; // a page with two tags runs this script twice
    setTimeout(poll, POLL_MS, node);
  });
})();
