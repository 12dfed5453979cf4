/* The overview: reloads its live part and its charts while the page is visible. */
(function () {
  'use strict';
  const POLL_MS = 2000;
  const SLOW_MS = 15000; // after an error

  const root = document.getElementById('tq-overview');
  if (!root) return;
  const live = document.getElementById('tq-live');
  const announce = document.getElementById('tq-announce');
  const age = document.getElementById('tq-age');
  const hold = document.getElementById('tq-pause-updates');
  const tools = document.getElementById('tq-chart-tools');

  let updatedAt = Date.now();
  let timer = 0;
  let lost = false;
  let known = new Set(texts().map(gist));

  function texts() {
    return Array.from(live.querySelectorAll('.tq-reasons li, .tq-reason'), (node) => node.textContent.trim());
  }

  /* A reason without its numbers, to recognise it after the next update. */
  function gist(text) {
    return text.replace(/\d+/g, '');
  }

  /* Announce only new reasons: the numbers change all the time. */
  function announceNew() {
    const now = texts();
    const fresh = now.filter((text) => !known.has(gist(text)));
    known = new Set(now.map(gist));
    if (fresh.length) announce.textContent = fresh.join(' ');
  }

  function replace(html) {
    const focused = document.activeElement && live.contains(document.activeElement) ? document.activeElement : null;
    const index = focused ? Array.from(live.querySelectorAll('a, [tabindex]')).indexOf(focused) : -1;
    const scroller = live.querySelector('.tq-scroll');
    const left = scroller ? scroller.scrollLeft : 0;
    live.innerHTML = html; // rendered and escaped by our own server
    const again = live.querySelector('.tq-scroll');
    if (again) again.scrollLeft = left;
    if (index >= 0) {
      const target = live.querySelectorAll('a, [tabindex]')[index];
      if (target) target.focus({ preventScroll: true });
    }
    announceNew();
  }

  async function get(url) {
    const response = await fetch(url, { credentials: 'same-origin', headers: { 'X-Requested-With': 'fetch' } });
    if (!response.ok || response.redirected) throw new Error(String(response.status));
    return response;
  }

  async function poll() {
    clearTimeout(timer);
    if (document.hidden || hold.checked) return;
    try {
      replace(await (await get(root.dataset.live)).text());
      await drawCharts();
      updatedAt = Date.now();
      lost = false;
    } catch (error) {
      lost = true;
    }
    clearTimeout(timer);
    timer = setTimeout(poll, lost ? SLOW_MS : POLL_MS);
  }

  function showAge() {
    if (lost) age.textContent = age.dataset.lost;
    else if (hold.checked) age.textContent = age.dataset.held;
    else age.textContent = age.dataset.text.replace('%s', Math.round((Date.now() - updatedAt) / 1000));
  }

  // -- charts ---------------------------------------------------------------

  const charts = {};
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const BANDS = ['background', 'low', 'normal', 'high', 'critical']; // from the bottom of the stack

  const short = (value) => {
    if (value === null || value === undefined) return '–';
    if (value >= 1e6) return `${+(value / 1e6).toFixed(1)}M`;
    if (value >= 1e4) return `${+(value / 1e3).toFixed(1)}k`;
    return String(+value.toFixed(value < 10 ? 1 : 0));
  };
  const seconds = (value) => {
    if (value === null || value === undefined) return '–';
    if (value < 1) return `${+(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms`;
    if (value < 120) return `${+value.toFixed(1)} s`;
    if (value < 7200) return `${+(value / 60).toFixed(1)} min`;
    return `${+(value / 3600).toFixed(1)} h`;
  };

  function line(label, colour, format, extra) {
    return Object.assign(
      { label, stroke: colour, width: 1.5, points: { show: false }, value: (u, v) => format(v), spanGaps: true },
      extra,
    );
  }

  const TIME = { hour: '2-digit', minute: '2-digit', hour12: false };
  const DAY = '\n{YYYY}-{MM}-{DD}';
  const TIMES = [ // steps in seconds, their labels, and the second line where the day changes
    [86400, '{MM}-{DD}', '\n{YYYY}', null, null, null, null, null, 1],
    [60, '{HH}:{mm}', DAY, null, DAY, null, null, null, 1],
    [1, '{HH}:{mm}:{ss}', DAY, null, DAY, null, null, null, 1],
  ];

  /* Without a pointer over the chart, its legend shows the last values. */
  function showLast(u) {
    let last = u.data[0].length - 1;
    while (last > 0 && u.data.slice(1).every((column) => column[last] === null)) last -= 1;
    if (last >= 0) u.setLegend({ idx: last }, false);
  }

  function options(element, series, format) {
    const quiet = css('--body-quiet-color') || '#666';
    const grid = { stroke: css('--hairline-color') || '#eee', width: 1 };
    return {
      width: Math.max(220, element.clientWidth),
      height: 190,
      cursor: { y: false, points: { size: 6 }, sync: { key: 'tq' } },
      legend: { live: true },
      hooks: { setLegend: [(u) => { if (u.legend.idx === null || u.legend.idx === undefined) showLast(u); }] },
      scales: { y: { range: (u, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
      axes: [
        { stroke: quiet, grid, ticks: grid, font: '11px system-ui, sans-serif', values: TIMES },
        {
          stroke: quiet, grid, ticks: { show: false }, size: 56, font: '11px system-ui, sans-serif',
          values: (u, splits) => splits.map(format),
        },
      ],
      series: [{ label: '', value: (u, v) => (v === null ? '' : new Date(v * 1000).toLocaleTimeString([], TIME)) }, ...series],
    };
  }

  function stack(values) {
    let below = null;
    const sums = {};
    for (const band of BANDS) {
      below = values[band].map((value, i) => (value || 0) + (below ? below[i] : 0));
      sums[band] = below;
    }
    return sums;
  }

  function show(name, data, makeSeries, format) {
    const element = document.getElementById(`tq-chart-${name}`);
    const known = charts[name];
    if (known) {
      known.raw = data.raw;
      known.plot.setData(data.plotted);
      if (!known.plot.over.matches(':hover')) showLast(known.plot);
      return;
    }
    const entry = { raw: data.raw };
    entry.plot = new uPlot(options(element, makeSeries(entry), format), data.plotted, element);
    charts[name] = entry;
    showLast(entry.plot);
  }

  function draw(data) {
    const t = data.times;
    const v = data.values;
    const sums = stack(v);
    const order = BANDS.slice().reverse(); // the highest sum first, so that the lower ones cover it
    show('depth', { plotted: [t, ...order.map((band) => sums[band])], raw: order.map((band) => v[band]) }, (entry) =>
      order.map((band, i) => line(band, css(`--tq-line-${band}`), short, {
        fill: css(`--tq-fill-${band}`), width: 1, value: (u, x, s, at) => short(at === null ? null : entry.raw[i][at]),
      })), short);
    const plain = (names) => ({ plotted: [t, ...names.map((name) => v[name])], raw: null });
    show('rate', plain(['completed', 'enqueued', 'failed']), () => [
      line('completed', css('--tq-line-good'), short, { fill: css('--tq-fill-low') }),
      line('enqueued', css('--tq-line-normal'), short, { dash: [4, 3] }),
      line('failed', css('--tq-line-critical'), short),
    ], short);
    for (const what of ['wait', 'run']) {
      show(what, plain([`${what}_p99`, `${what}_p95`, `${what}_p50`]), () => [
        line('p99', css('--tq-line-high'), seconds),
        line('p95', css('--tq-line-background'), seconds, { dash: [4, 3] }),
        line('p50', css('--tq-line-normal'), seconds, { fill: css('--tq-fill-normal') }),
      ], seconds);
    }
    root.dataset.drawn = String(data.to); // tests watch the charts move
  }

  async function drawCharts() {
    if (typeof uPlot === 'undefined') return;
    const form = new FormData(tools);
    const query = new URLSearchParams({ range: form.get('range'), queue: form.get('queue') });
    draw(await (await get(`${root.dataset.charts}?${query}`)).json());
  }

  function redraw() {
    for (const name of Object.keys(charts)) {
      charts[name].plot.destroy();
      delete charts[name];
    }
    drawCharts().catch(() => { lost = true; });
  }

  tools.addEventListener('change', (event) => {
    if (event.target === hold) {
      if (!hold.checked) poll();
      showAge();
    } else redraw();
  });
  tools.addEventListener('submit', (event) => event.preventDefault());
  document.addEventListener('visibilitychange', () => { if (!document.hidden) poll(); });
  let resizing = 0;
  window.addEventListener('resize', () => { clearTimeout(resizing); resizing = setTimeout(redraw, 200); });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
  new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ['data-theme'] });
  setInterval(showAge, 1000);
  poll();
})();
