/* A task's page: reloads progress and log lines while the task runs and the page is visible. Pages work without it. */
(function () {
  'use strict';
  const POLL_MS = 2000;
  const SLOW_MS = 15000; // after an error

  const live = document.getElementById('tq-task-live');
  if (!live || !live.dataset.live) return;
  const moved = document.getElementById('tq-task-moved');
  let shown = '';

  /* Insert the new text. Opened parts stay open, and a log that was scrolled to its end stays at its end. */
  function replace(html) {
    if (html === shown || String(window.getSelection())) return;
    shown = html;
    const open = Array.from(live.querySelectorAll('details'), (node) => node.open);
    const logs = Array.from(live.querySelectorAll('pre'), (node) => ({
      top: node.scrollTop, atEnd: node.scrollTop + node.clientHeight >= node.scrollHeight - 4,
    }));
    live.innerHTML = html; // rendered and escaped by our own server
    live.querySelectorAll('details').forEach((node, index) => { if (index < open.length) node.open = open[index]; });
    live.querySelectorAll('pre').forEach((node, index) => {
      if (logs[index]) node.scrollTop = logs[index].atEnd ? node.scrollHeight : logs[index].top;
    });
  }

  async function poll() {
    let pause = POLL_MS;
    if (!document.hidden) {
      try {
        const response = await fetch(live.dataset.live, { credentials: 'same-origin', headers: { 'X-Requested-With': 'fetch' } });
        if (!response.ok || response.redirected) throw new Error(String(response.status));
        replace(await response.text());
        if (response.headers.get('X-Task-Status') !== live.dataset.status) {
          moved.hidden = false;
          return;
        }
      } catch (error) {
        pause = SLOW_MS;
      }
    }
    setTimeout(poll, pause);
  }

  setTimeout(poll, POLL_MS);
})();
