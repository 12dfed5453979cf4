/* Shared by all pages of the task queue: times in the viewer's zone, shortcuts, saved views. Pages work without it. */
(function () {
  'use strict';

  // -- times in the viewer's time zone ------------------------------------------

  const zone = new Intl.DateTimeFormat(undefined, { timeZoneName: 'short' });
  const pad = (number) => String(number).padStart(2, '0');
  const day = (at) => `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  const clock = (at) => [at.getHours(), at.getMinutes(), at.getSeconds()].map(pad).join(':');
  function localise(within) {
    const today = day(new Date());
    for (const time of within.querySelectorAll('time[datetime]')) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      const name = zone.formatToParts(at).find((part) => part.type === 'timeZoneName').value;
      time.title = `${day(at)} ${clock(at)} ${name}`;
      if (time.classList.contains('tq-exact')) time.textContent = day(at) === today ? clock(at) : `${day(at)} ${clock(at)}`;
    }
  }

  // -- names of the cells, for the cards of small screens ------------------------

  function label(within) {
    for (const table of within.querySelectorAll('#result_list, .tq-table')) {
      const heads = Array.from(table.querySelectorAll('thead th'));
      const names = heads.map((head) => head.textContent.trim());
      const all = table.querySelector('#action-toggle');
      if (all) all.closest('th').dataset.label = all.getAttribute('aria-label');
      for (const row of table.querySelectorAll('tbody tr')) {
        const cells = Array.from(row.children);
        if (cells.length !== names.length) continue; // one cell over all columns
        cells.forEach((cell, n) => {
          const isTitle = cell.matches('.tq-title, .action-checkbox, .field-type, .tq-row-action') || (cell.matches('th') && !cell.matches('.field-short_id'));
          if (names[n] && !isTitle) cell.dataset.label = names[n];
        });
      }
    }
  }

  // -- shortcuts ---------------------------------------------------------------

  const isTyping = (target) => target.closest('input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]');
  let prefix = '';
  let prefixTimer = 0;

  function click(selector) {
    const target = document.querySelector(selector);
    if (target) target.click();
    return Boolean(target);
  }
  function focus(selector) {
    const target = document.querySelector(selector);
    if (target) target.focus();
    return Boolean(target);
  }
  function rows() {
    return Array.from(document.querySelectorAll('#result_list tbody tr, .tq-queues tbody tr:not(.tq-why)'));
  }
  function step(by) {
    const all = rows();
    if (!all.length) return false;
    const at = all.findIndex((row) => row.classList.contains('tq-here'));
    const next = all[Math.min(all.length - 1, Math.max(0, at + by))];
    all.forEach((row) => row.classList.toggle('tq-here', row === next));
    const link = next.querySelector('th a, td a');
    if (link) link.focus();
    next.scrollIntoView({ block: 'nearest' });
    return true;
  }
  function tick() {
    const box = document.querySelector('tr.tq-here input.action-select');
    if (box) box.click();
    return Boolean(box);
  }

  const help = document.getElementById('tq-help');
  const base = help ? help.dataset.base : '';
  function go(where) {
    if (!base) return false;
    window.location.assign(base + where);
    return true;
  }
  /* Single keys can be switched off (WCAG 2.1.4); the button at the end of the page still opens the list. */
  const KEYS_OFF = `taskqueue-keys-off-${help ? help.dataset.user : ''}`;
  const keysOn = document.getElementById('tq-keys-on');
  if (keysOn) {
    try { keysOn.checked = !localStorage.getItem(KEYS_OFF); } catch { /* no storage: on */ }
    keysOn.addEventListener('change', () => {
      try { keysOn.checked ? localStorage.removeItem(KEYS_OFF) : localStorage.setItem(KEYS_OFF, '1'); } catch { /* until the next page */ }
    });
  }
  const KEYS = {
    '?': () => { if (help) help.open ? help.close() : help.showModal(); return Boolean(help); },
    '/': () => focus('#searchbar'),
    j: () => step(1),
    k: () => step(-1),
    x: tick,
    h: () => click('#tq-pause-updates'),
    'g o': () => go(''),
    'g t': () => go('task/'),
    'g d': () => go('deadletter/'),
    'g q': () => go('queue/'),
    'g w': () => go('worker/'),
    'g a': () => go('auditentry/'),
  };
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || (keysOn && !keysOn.checked)) return;
    if (event.key === 'Shift') return;
    const key = prefix ? `${prefix} ${event.key}` : event.key;
    clearTimeout(prefixTimer);
    prefix = '';
    if (event.key === 'g' && key === 'g') {
      prefix = 'g';
      prefixTimer = setTimeout(() => { prefix = ''; }, 1500);
    } else if (KEYS[key] && KEYS[key]()) event.preventDefault();
  });

  // -- small things --------------------------------------------------------------

  /* Of a traceback, the frames of libraries are copied too, but not the words that fold them. */
  const plain = (node) => [...node.querySelectorAll('pre')].map((part) => part.textContent).join('\n') || node.textContent;
  document.addEventListener('click', (event) => {
    const copy = event.target.closest('[data-tq-copy]');
    if (copy) {
      const source = document.getElementById(copy.dataset.tqCopy);
      if (source && navigator.clipboard) navigator.clipboard.writeText(plain(source)).then(() => copy.classList.add('tq-done'));
    }
    if (help && event.target.closest('[data-tq-help]')) help.showModal();
    if (help && event.target === help) help.close();
    for (const menu of document.querySelectorAll('.tq-menu[open]')) {
      if (!menu.contains(event.target)) menu.open = false;
    }
  });
  document.addEventListener('keydown', (event) => {
    const menu = event.key === 'Escape' && document.querySelector('.tq-menu[open]');
    if (menu) {
      menu.open = false;
      menu.querySelector('summary').focus();
    }
  });
  const dress = (within) => { localise(within); label(document); };
  dress(document);
  const live = document.getElementById('tq-live');
  if (live) new MutationObserver(() => dress(live)).observe(live, { childList: true, subtree: true });
  document.addEventListener('taskqueue:updated', (event) => dress(event.detail));
  /* Reload the page of what runs until it has ended, but not while a person uses its form. */
  const running = document.querySelector('[data-tq-running]');
  if (running) {
    const inUse = () => document.hidden || document.querySelector('.tq-page form :focus')
      || [...document.querySelectorAll('.tq-page form input[type="text"]')].some((field) => field.value);
    const reload = () => { if (inUse()) setTimeout(reload, 2500); else window.location.reload(); };
    setTimeout(reload, 1000 * (Number(running.dataset.tqRunning) || 2.5));
  }

  /* Of the fields that say when a schedule repeats, show those that the chosen shape needs. */
  const shape = document.querySelector('[data-tq-needs]');
  if (shape) {
    const needs = Object.fromEntries(shape.dataset.tqNeeds.split(';').map((each) => each.split(':')));
    const names = new Set(Object.values(needs).flatMap((each) => each.split(',')).filter(Boolean));
    const choose = () => {
      const needed = (needs[shape.value] || '').split(',');
      for (const name of names) {
        const box = shape.form.querySelector(`.fieldBox.field-${name}`);
        for (const part of [box, box.closest('fieldset:not(.module)')]) if (part) part.hidden = !needed.includes(name);
      }
      const more = shape.form.querySelector('#id_cron').closest('details');
      if (more && !shape.value) more.open = true;
    };
    shape.addEventListener('change', choose);
    choose();
  }
  /* The fields of the arguments follow from the task type: fetch those, and leave all that is filled in as it is. */
  const typed = document.querySelector('[data-tq-again]');
  if (typed) typed.addEventListener('change', async () => {
    const response = await fetch(`?${new URLSearchParams({ task_type: typed.value })}`);
    const page = new DOMParser().parseFromString(await response.text(), 'text/html');
    const rows = (within) => within.querySelectorAll('.form-row:is(.field-args, .field-parameters)');
    const [first, ...rest] = rows(typed.form);
    first.replaceWith(...rows(page));
    rest.forEach((row) => row.remove());
  });

  /* Show the next ticks of a schedule while the user types; without this script a button does. */
  const preview = document.querySelector('[data-tq-preview]');
  if (preview) {
    const form = preview.closest('form');
    const shown = preview.querySelector('.tq-preview-live');
    let waiting = 0;
    let last = 0;
    const show = async () => {
      const mine = ++last;
      const response = await fetch(preview.dataset.tqPreview, {
        method: 'POST', body: new FormData(form), credentials: 'same-origin', headers: { 'X-Requested-With': 'fetch' },
      });
      if (response.ok && mine === last) {
        shown.innerHTML = await response.text();
        localise(shown);
      }
    };
    preview.classList.add('tq-is-live');
    form.addEventListener('input', () => {
      clearTimeout(waiting);
      waiting = setTimeout(show, 300);
    });
    if (!('known' in preview.dataset)) show(); // else the page shows them above
  }
})();
