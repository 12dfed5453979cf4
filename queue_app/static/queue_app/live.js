/* The overview: reloads its live parts and its charts while the page is visible, and says so when no answer comes. */
(function () {
  'use strict';
  const POLL_MS = 2000;
  const WAIT_MS = 2500; // an answer that takes longer counts as none: two seconds and this are less than five
  const AGAIN_MS = 3000; // after an error

  const root = document.getElementById('tq-overview');
  if (!root) return;
  const live = document.getElementById('tq-live');
  const announce = document.getElementById('tq-announce');
  const age = document.getElementById('tq-age');
  const hold = document.getElementById('tq-pause-updates');
  const away = document.getElementById('tq-away');

  let updatedAt = Date.now();
  let timer = 0;
  let lost = false;
  let words = away.dataset.text; // empty: the page says already that its session has ended
  let known = new Set(texts().map(gist));

  function texts() {
    return Array.from(live.querySelectorAll('.tq-reasons li, .tq-reason'), (node) => {
      const of = node.closest('[data-tq-queue]'); // the reasons of a queue name it only for eyes
      return (of ? `${of.dataset.tqQueue}: ` : '') + node.textContent.trim();
    });
  }

  /* A reason without its numbers and times, to recognise it after the next update. */
  function gist(text) {
    return text.replace(/[\d.,\s]+(ms|s|min|h|d)?\b/g, ' ');
  }

  /* Announce only new reasons: the numbers change all the time. */
  function announceNew() {
    const now = texts();
    const fresh = now.filter((text) => !known.has(gist(text)));
    known = new Set(now.map(gist));
    if (fresh.length) announce.textContent = fresh.join(' ');
  }

  function replace(page) {
    for (const part of page.querySelectorAll('[data-tq-part]')) {
      const here = live.querySelector(`[data-tq-part="${part.dataset.tqPart}"]`);
      if (here) window.taskqueueMorph(here, part);
    }
    announceNew();
  }

  async function poll() {
    clearTimeout(timer);
    if (document.hidden || hold.checked) return;
    try {
      if (root.dataset.live) replace(await window.taskqueueParsed(await window.taskqueueGet(root.dataset.live, WAIT_MS)));
      if (window.taskqueueCharts) await window.taskqueueCharts.load(WAIT_MS);
      updatedAt = Date.now();
      lost = false;
    } catch (error) {
      lose(error);
    }
    showAge();
    clearTimeout(timer);
    timer = setTimeout(poll, lost ? AGAIN_MS : POLL_MS);
  }

  /* The server answers 503 while PostgreSQL does not answer it. */
  function lose(error) {
    lost = true;
    words = { 503: away.dataset.database, login: '' }[error && error.message] ?? away.dataset.text;
  }

  function length(seconds) {
    return seconds < 120 ? `${seconds} s` : `${Math.round(seconds / 60)} min`;
  }

  function showAge() {
    const at = new Date(updatedAt).toLocaleTimeString([], { hour12: false });
    root.classList.toggle('tq-stale', lost);
    away.hidden = !lost || !words;
    if (lost) {
      const text = words.replace('%s', at);
      if (away.textContent !== text) away.textContent = text;
    }
    if (hold.checked) age.textContent = age.dataset.held;
    else age.textContent = age.dataset.text.replace('%s', length(Math.round((Date.now() - updatedAt) / 1000)));
  }

  hold.addEventListener('change', () => {
    if (!hold.checked) poll();
    showAge();
  });
  document.addEventListener('visibilitychange', () => { if (!document.hidden) poll(); });
  setInterval(showAge, 1000);
  if (window.taskqueueCharts) window.taskqueueCharts.onFailure((error) => { lose(error); showAge(); });
  poll();
})();
