/* Read a page again, and turn one piece of it into another. This touches only what differs: focus, selection, ticks,
   open menus and the mark of j and k stay. Elements with an id, and rows with a tick box, are recognised; others go by
   their place. */
(function () {
  'use strict';
  const OURS = ['tq-here', 'selected']; // classes that scripts of the page have set
  const STAY = ['open', 'checked', 'value', 'data-label']; // what the viewer changes, and the names in cards

  function key(node) {
    if (node.nodeType !== 1) return '';
    if (node.id) return node.id;
    const box = node.matches('tr') && node.querySelector('input.action-select');
    return box ? `row ${box.value}` : '';
  }

  function attributes(node, wanted) {
    const kept = OURS.filter((name) => node.classList.contains(name));
    for (const { name } of Array.from(node.attributes)) {
      if (!wanted.hasAttribute(name) && !STAY.includes(name) && name !== 'class') node.removeAttribute(name);
    }
    for (const { name, value } of Array.from(wanted.attributes)) {
      if (!STAY.includes(name) && name !== 'class' && node.getAttribute(name) !== value) node.setAttribute(name, value);
    }
    const classes = [...wanted.classList, ...kept.filter((name) => !wanted.classList.contains(name))].join(' ');
    if (classes !== (node.getAttribute('class') || '')) node.setAttribute('class', classes); // also of SVG
  }

  function isSame(node, wanted) {
    return node.nodeType === wanted.nodeType && node.nodeName === wanted.nodeName && key(node) === key(wanted);
  }

  /* A time that was written in the viewer's zone stays as it is while it is the same moment. */
  function isLocalised(node, wanted) {
    return node.nodeName === 'TIME' && wanted.classList.contains('tq-exact') && node.dateTime === wanted.dateTime;
  }

  function morph(node, wanted) {
    if (node.nodeType === 3) {
      if (node.data !== wanted.data) node.data = wanted.data;
      return;
    }
    if (node.nodeType !== 1 || isLocalised(node, wanted)) return;
    attributes(node, wanted);
    children(node, wanted);
  }

  function children(node, wanted) {
    const known = new Map(Array.from(node.children, (child) => [key(child), child]).filter(([name]) => name));
    let at = node.firstChild;
    for (const next of Array.from(wanted.childNodes)) {
      const named = key(next) && known.get(key(next));
      if (named && named !== at) node.insertBefore(named, at);
      const here = named || at;
      if (here && isSame(here, next)) {
        morph(here, next);
        at = here.nextSibling;
      } else {
        node.insertBefore(document.importNode(next, true), at);
      }
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  }

  /* Say at the top of any page that its session has ended, until an answer comes again. */
  function sayLoggedOut(isOut) {
    const known = document.getElementById('tq-logged-out');
    const help = document.getElementById('tq-help');
    if (known && !isOut) known.remove();
    if (known || !isOut || !help) return;
    const link = Object.assign(document.createElement('a'), { href: window.location.href, textContent: help.dataset.login });
    const bar = Object.assign(document.createElement('p'), { id: 'tq-logged-out', className: 'tq-away-bar', role: 'alert' });
    bar.append(`${help.dataset.loggedOut} `, link);
    document.getElementById('content').prepend(bar);
  }

  /* Fetch an address. It is an error when no answer comes in time, or when it leads to the login. */
  async function get(url, wait = 10000) {
    const response = await fetch(url, { signal: AbortSignal.timeout(wait) });
    sayLoggedOut(response.redirected);
    if (!response.ok || response.redirected) throw new Error(response.redirected ? 'login' : String(response.status));
    return response;
  }

  const parsed = async (response) => new DOMParser().parseFromString(await response.text(), 'text/html');

  Object.assign(window, { taskqueueMorph: children, taskqueueGet: get, taskqueueParsed: parsed });
})();
