/* Lists: rows are updated while the page is visible, and the search suggests names. Pages work without it. */
(function () {
  'use strict';
  const POLL_MS = 5000;
  const TYPED_MS = 200;

  // -- live rows ---------------------------------------------------------------

  const live = document.getElementById('tq-live-list');
  const state = document.getElementById('tq-list-state');
  const list = () => document.getElementById('result_list');

  function isSelected() {
    return Boolean(document.querySelector('input.action-select:checked'));
  }

  async function update() {
    const page = await window.taskqueueParsed(await window.taskqueueGet(window.location.href));
    const rows = page.querySelector('#result_list tbody');
    const here = list() && list().querySelector('tbody');
    if (!rows || !here || isSelected()) return; // ticked while the answer was on its way
    window.taskqueueMorph(here, rows);
    const count = page.querySelector('.paginator');
    const shown = document.querySelector('.paginator');
    if (count && shown) window.taskqueueMorph(shown, count);
    document.dispatchEvent(new CustomEvent('taskqueue:updated', { detail: here }));
    here.dataset.updated = String(Date.now()); // tests watch it
  }

  /* Rows that cannot be updated are grey: how long they say that a task runs is no longer true. */
  function show(lost) {
    if (lost && !state.textContent) {
      state.textContent = state.dataset.away.replace('%s', new Date().toLocaleTimeString([], { hour12: false }));
    }
    if (!lost) state.textContent = '';
    state.classList.toggle('tq-alert', lost);
    list().classList.toggle('tq-stale-rows', lost);
  }

  async function poll() {
    if (live.checked && !document.hidden && list()) {
      if (isSelected()) state.textContent = state.dataset.held;
      else if (!list().classList.contains('tq-stale-rows')) state.textContent = '';
      if (!isSelected()) await update().then(() => show(false), () => show(true));
    }
    setTimeout(poll, POLL_MS);
  }
  if (live && window.taskqueueMorph) setTimeout(poll, POLL_MS);

  // -- suggestions -------------------------------------------------------------

  const bar = document.getElementById('searchbar');
  const names = document.getElementById('tq-suggestions');
  let typed = 0;
  async function suggest() {
    const query = new URLSearchParams({ q: bar.value });
    const response = await fetch(`${names.dataset.url}?${query}`);
    if (!response.ok) return;
    const found = (await response.json()).names;
    names.replaceChildren(...found.map((name) => Object.assign(document.createElement('option'), { value: name })));
  }
  if (bar && names) {
    bar.addEventListener('input', () => {
      clearTimeout(typed);
      if (bar.value.trim().length > 1) typed = setTimeout(() => suggest().catch(() => {}), TYPED_MS);
    });
  }
})();
