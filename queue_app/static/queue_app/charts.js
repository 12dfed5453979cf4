/* Draws the charts of the overview and of a queue's page with uPlot, from the series that the server sends. */
(function () {
  'use strict';
  const root = document.querySelector('[data-charts]');
  const tools = document.getElementById('tq-chart-tools');
  if (!root || !tools || typeof uPlot === 'undefined') return;

  const charts = {};
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const BANDS = ['background', 'low', 'normal', 'high', 'critical']; // from the bottom of the stack
  const UNITS = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's'], [0.001, 'ms']];
  let waits = 0; // ms for an answer; 0 until the page has asked for the points
  let failed = () => {};
  let span = null; // of the time axis: what was asked for, however few points there are
  let marks = [];

  const plain = (value) => +value.toFixed(value < 10 ? 1 : 0);
  const short = (value) => {
    if (value === null || value === undefined) return '–';
    if (value >= 1e6) return `${+(value / 1e6).toFixed(1)}M`;
    if (value >= 1e4) return `${+(value / 1e3).toFixed(1)}k`;
    return String(plain(value));
  };
  /* Steps of the axes: half a task is no task, and a minute has 60 seconds. */
  const TENS = [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7];
  const COUNTS = TENS.flatMap((ten) => [ten, 2 * ten, 5 * ten]);
  const LENGTHS = [
    ...[0.001, 0.01, 0.1].flatMap((ten) => [ten, 2 * ten, 5 * ten]),
    ...[1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800],
    ...[1, 2, 3, 6, 12, 24, 48, 120, 240, 480].map((hours) => 3600 * hours),
  ];
  const whole = (u, splits) => splits.map(short);
  const unitOf = (value) => UNITS.find(([size]) => value >= size) || UNITS[UNITS.length - 1];
  const seconds = (value) => {
    if (value === null || value === undefined) return '–';
    if (value === 0) return '0 s';
    const [size, unit] = unitOf(value);
    return `${plain(value / size)} ${unit}`;
  };
  /* All labels of an axis in the largest unit in which each is a whole number. */
  const lengths = (u, splits) => {
    const isWhole = ([size]) => splits.every((value) => Math.abs(value / size - Math.round(value / size)) < 1e-6);
    const [size, unit] = UNITS.find((each) => each[0] <= Math.max(...splits) && isWhole(each)) || UNITS[UNITS.length - 1];
    return splits.map((value) => `${Math.round(value / size)} ${unit}`);
  };

  /* One or two values are points, as no line shows them. */
  const few = (u, at) => u.data[at].filter((value) => value !== null && value !== undefined).length < 3;

  function line(label, colour, format, extra) {
    return Object.assign(
      { label, stroke: colour, width: 1.5, points: { show: few, size: 5 }, value: (u, v) => format(v), spanGaps: false },
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

  /* What staff and deployments did, as dashed lines with a letter. */
  function drawMarks(u) {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = css('--tq-line-background') || '#777';
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.setLineDash([4, 4]);
    for (const mark of marks) {
      const x = u.valToPos(mark.at, 'x', true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.fillText(String(mark.number), x + 2, bbox.top + 11 * devicePixelRatio);
    }
    ctx.restore();
  }

  function options(element, series, format, labels) {
    const quiet = css('--body-quiet-color') || '#666';
    const grid = { stroke: css('--hairline-color') || '#eee', width: 1 };
    return {
      width: Math.max(220, element.clientWidth),
      height: 190,
      cursor: { y: false, points: { size: 6 }, sync: { key: 'tq' } },
      legend: { live: true },
      hooks: {
        setLegend: [(u) => { if (u.legend.idx === null || u.legend.idx === undefined) showLast(u); }],
        draw: [drawMarks],
      },
      scales: { x: { range: () => span }, y: { range: (u, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
      axes: [
        { stroke: quiet, grid, ticks: grid, font: '11px system-ui, sans-serif', values: TIMES },
        { stroke: quiet, grid, ticks: { show: false }, size: 56, font: '11px system-ui, sans-serif', values: labels, incrs: labels === lengths ? LENGTHS : COUNTS },
      ],
      series: [{ label: '', value: (u, v) => (v === null ? '' : new Date(v * 1000).toLocaleTimeString([], TIME)) }, ...series],
    };
  }

  function stack(values) {
    let below = null;
    const sums = {};
    for (const band of BANDS) {
      below = values[band].map((value, i) => (value === null ? null : value + (below ? below[i] : 0)));
      sums[band] = below;
    }
    return sums;
  }

  function show(name, data, makeSeries, format, labels) {
    const element = document.getElementById(`tq-chart-${name}`);
    const known = charts[name];
    if (known) {
      known.raw = data.raw;
      known.plot.setData(data.plotted);
      if (!known.plot.over.matches(':hover')) showLast(known.plot);
      return;
    }
    const entry = { raw: data.raw };
    entry.plot = new uPlot(options(element, makeSeries(entry), format, labels), data.plotted, element);
    charts[name] = entry;
    showLast(entry.plot);
  }

  function draw(data) {
    const t = data.times;
    const v = data.values;
    span = [data.from, data.to];
    marks = (data.marks || []).map((mark, i) => ({ ...mark, number: i + 1 }));
    const sums = stack(v);
    const order = BANDS.slice().reverse(); // the highest sum first, so that the lower ones cover it
    show('depth', { plotted: [t, ...order.map((band) => sums[band])], raw: order.map((band) => v[band]) }, (entry) =>
      order.map((band, i) => line(tools.dataset[band], css(`--tq-line-${band}`), short, {
        fill: css(`--tq-fill-${band}`), width: 1, value: (u, x, s, at) => short(at === null ? null : entry.raw[i][at]),
      })), short, whole);
    const columns = (names) => ({ plotted: [t, ...names.map((name) => v[name])], raw: null });
    show('rate', columns(['completed', 'enqueued', 'failed']), () => [
      line(tools.dataset.completed, css('--tq-line-good'), short, { fill: css('--tq-fill-low') }),
      line(tools.dataset.enqueued, css('--tq-line-normal'), short, { dash: [4, 3] }),
      line(tools.dataset.failed, css('--tq-line-critical'), short),
    ], short, whole);
    for (const what of ['wait', 'run']) {
      show(what, columns([`${what}_p99`, `${what}_p95`, `${what}_p50`]), () => [
        line('p99', css('--tq-line-high'), seconds),
        line('p95', css('--tq-line-background'), seconds, { dash: [4, 3] }),
        line('p50', css('--tq-line-normal'), seconds, { fill: css('--tq-fill-normal') }),
      ], seconds, lengths);
    }
    listMarks();
    root.dataset.drawn = String(data.to); // tests watch the charts move
  }

  function listMarks() {
    const list = document.getElementById('tq-marks');
    if (!list) return;
    list.replaceChildren(...marks.map((mark) => {
      const item = document.createElement('li');
      const at = new Date(mark.at * 1000).toLocaleTimeString([], TIME);
      item.textContent = `${at} ${mark.text}`;
      return item;
    }));
    list.hidden = !marks.length;
  }

  async function load(ms) {
    waits = ms;
    const form = new FormData(tools);
    const query = new URLSearchParams({ range: form.get('range'), queue: form.get('queue') });
    draw(await (await window.taskqueueGet(`${root.dataset.charts}?${query}`, ms)).json());
  }

  function redraw() {
    for (const name of Object.keys(charts)) {
      charts[name].plot.destroy();
      delete charts[name];
    }
    if (waits) load(waits).catch((error) => failed(error));
  }

  tools.addEventListener('change', redraw);
  tools.addEventListener('submit', (event) => event.preventDefault());
  let resizing = 0;
  window.addEventListener('resize', () => { clearTimeout(resizing); resizing = setTimeout(redraw, 200); });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
  new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ['data-theme'] });
  window.taskqueueCharts = { load, onFailure: (act) => { failed = act; } };
})();
