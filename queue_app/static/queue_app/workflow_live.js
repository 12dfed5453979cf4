/* A workflow's page: shows what happens while the workflow runs and the page is visible. The page works without it. */
(function () {
  'use strict';

  const flow = document.getElementById('tq-flow');
  const live = document.getElementById('tq-flow-live');
  const away = document.getElementById('tq-flow-away');
  const status = document.getElementById('tq-flow-status');
  if (!flow || !live || !window.taskqueueMorph) return;
  const summary = () => document.getElementById('tq-flow-summary').textContent.replace(/\s+/g, ' ').trim();

  async function update() {
    const page = await window.taskqueueParsed(await window.taskqueueGet(window.location.href));
    const next = page.getElementById('tq-flow');
    if (!next) throw new Error('no workflow');
    const before = summary();
    window.taskqueueMorph(flow, next);
    if (summary() !== before) status.textContent = summary();
    if (next.dataset.tqLive) flow.dataset.tqLive = next.dataset.tqLive;
    else delete flow.dataset.tqLive;
    document.dispatchEvent(new CustomEvent('taskqueue:updated', { detail: flow }));
    flow.dataset.updated = String(Date.now()); // tests watch it
  }

  async function poll() {
    if (live.checked && !document.hidden) {
      await update().then(() => { away.textContent = ''; }, () => { away.textContent = away.dataset.away; });
    }
    if (flow.dataset.tqLive) setTimeout(poll, 1000 * Number(flow.dataset.tqLive));
    else live.closest('p').hidden = true;
  }
  setTimeout(poll, 1000 * Number(flow.dataset.tqLive));
})();
