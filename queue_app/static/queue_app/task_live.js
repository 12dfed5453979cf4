/* A task's page: reloads progress and log lines while the task runs and the page is visible. Pages work without it. */
(function () {
  'use strict';
  const POLL_MS = 2000;
  const SLOW_MS = 15000; // after an error

  const live = document.getElementById('tq-task-live');
  if (!live || !live.dataset.live) return;
  const moved = document.getElementById('tq-task-moved');

  /* Show the new text. A log that was scrolled to its end stays at its end. */
  function replace(page) {
    if (String(window.getSelection())) return;
    const isAtEnd = (log) => log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
    const atEnd = Array.from(live.querySelectorAll('pre')).filter(isAtEnd);
    window.taskqueueMorph(live, page.body);
    atEnd.forEach((log) => { log.scrollTop = log.scrollHeight; });
    document.dispatchEvent(new CustomEvent('taskqueue:updated', { detail: live }));
  }

  async function poll() {
    let pause = POLL_MS;
    if (!document.hidden) {
      try {
        const response = await window.taskqueueGet(live.dataset.live);
        replace(await window.taskqueueParsed(response));
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
