'use strict';
(() => {
  const RECONNECT_AFTER = 1500;
  const live = document.getElementById('live');
  const status = document.getElementById('status');
  const search = document.getElementById('search');
  const filter = document.getElementById('filter');
  const found = document.getElementById('found');
  let received = performance.now();
  let hasReceived = false;
  let source = null;
  let query = '';
  let reconnect = 0;

  // The stream.

  function connect() {
    clearTimeout(reconnect);
    source?.close();
    query = location.search;
    source = new EventSource(`/live${query}`);
    source.addEventListener('page', (event) => {
      received = performance.now();
      hasReceived = true;
      show(event.data);
      showState();
    });
    // The browser reconnects by itself after a lost connection, but not after an error status.
    source.addEventListener('error', () => {
      showState();
      if (source.readyState === EventSource.CLOSED) {
        clearTimeout(reconnect);
        reconnect = setTimeout(connect, RECONNECT_AFTER);
      }
    });
  }

  // A page that is no longer visible receives no events.
  document.addEventListener('visibilitychange', () => {
    if (document.hidden) {
      clearTimeout(reconnect);
      source?.close();
      source = null;
    } else if (!source) {
      connect();
      showState();
    }
  });

  let state = '';
  function showState() {
    const silent = performance.now() - received;
    const about = live.querySelector('.about');
    const next = silent > about.dataset.staleAfter ? 'stale' : hasReceived ? 'live' : 'waiting';
    const title = (next === 'stale' ? 'Stale · ' : '') + about.dataset.title;
    if (document.title !== title) document.title = title;
    // Only changes are announced to screen readers.
    if (next === state) return;
    state = next;
    const stale = state === 'stale';
    status.className = state;
    document.documentElement.classList.toggle('is-stale', stale);
    status.textContent = stale
      ? `Stale: no data from podmeter since ${about.querySelector('time').textContent} UTC. Older values are shown; reconnecting.`
      : state === 'live' ? 'Live' : '';
  }

  // Changes only what differs, to keep focus, selection and scroll position. What can come, go or move beside others of its
  // kind, or has state, has an `id` or `data-key`, which no sibling has.

  const parser = document.createElement('template');
  let isIncomplete = false;
  function show(text) {
    const focused = document.activeElement;
    isIncomplete = false;
    parser.innerHTML = text;
    patchChildren(live, parser.content);
    parser.innerHTML = '';
    const matches = live.querySelector('.about').dataset.found;
    if (found.textContent !== matches) found.textContent = matches;
    for (const row of live.querySelectorAll('.more[open]')) fill(row);
    if (focused && focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
    // A new stream begins with the whole page.
    if (isIncomplete) connect();
  }

  const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE && (node.id || node.dataset.key)) || '';

  function patchChildren(old, fresh) {
    const keyed = new Map();
    for (const child of old.children) if (keyOf(child)) keyed.set(keyOf(child), child);
    let at = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      const key = keyOf(child);
      const match = key ? keyed.get(key) : at && !keyOf(at) && at.nodeName === child.nodeName ? at : null;
      if (!match || match.nodeName !== child.nodeName) {
        // Left out as the same, and not here.
        if (child.matches?.('[data-same]') || child.querySelector?.('[data-same]')) isIncomplete = true;
        old.insertBefore(child, at);
        continue;
      }
      if (match === at) at = at.nextSibling;
      else old.insertBefore(match, at);
      patch(match, child);
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  // The reader opens and closes rows and sections, and the script fills what is marked with data-keep.
  const KEPT = ['open'];

  // An element that the stream marks as the same is empty.
  function patch(old, fresh) {
    if (fresh.dataset?.same !== undefined) return;
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    for (const { name } of [...old.attributes]) {
      if (!KEPT.includes(name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (!KEPT.includes(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    if (!old.hasAttribute('data-keep')) patchChildren(old, fresh);
  }

  // The metrics and events of an open row, from the page to which its link leads.

  const REFILL_AFTER = 2000;
  const filled = new WeakMap();

  async function fill(row) {
    const kept = row.querySelector('[data-keep]');
    const { at = -Infinity, url = kept.querySelector('a').href } = filled.get(row) ?? {};
    if (performance.now() - at < REFILL_AFTER) return;
    filled.set(row, { at: performance.now(), url });
    try {
      const answer = await fetch(url);
      const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
      const fresh = page.getElementById('detail');
      if (answer.ok && fresh) patchChildren(kept, fresh);
    } catch { /* the state Stale is shown */ }
  }

  live.addEventListener('toggle', ({ target }) => {
    if (target.matches('.more[open]')) fill(target);
  }, true);

  // With execCommand('copy'): the Clipboard API is missing where the page comes over HTTP from another machine.
  let copied = null;
  live.addEventListener('click', ({ target }) => {
    if (!target.matches('[data-copy]')) return;
    const area = document.createElement('textarea');
    area.value = target.dataset.copy;
    target.after(area);
    area.select();
    if (document.execCommand('copy')) {
      if (copied) copied.textContent = 'copy';
      copied = target;
      copied.textContent = 'copied';
    }
    area.remove();
    target.focus({ preventScroll: true });
  });

  // The value of a chart under the pointer.

  const tip = document.getElementById('tip');
  addEventListener('pointermove', ({ clientX, clientY }) => {
    const chart = document.elementsFromPoint(clientX, clientY).find((part) => part.matches('[data-values]'));
    tip.hidden = !chart;
    if (!chart) return;
    const values = chart.dataset.values.split(',');
    const { left, width } = chart.getBoundingClientRect();
    const at = Math.min(values.length - 1, Math.max(0, Math.floor((clientX - left) / width * values.length)));
    const { unit, step } = chart.dataset;
    tip.textContent = `${values[at] ? `${values[at]} ${unit}` : 'unknown'}, ${(values.length - 1 - at) * step} s ago`;
    tip.style.left = `${Math.min(clientX + 12, innerWidth - tip.offsetWidth - 4)}px`;
    tip.style.top = `${Math.max(clientY - 28, 0)}px`;
  });

  // Links to another window, order or row, and the filter, change the stream and the URL, not the document.

  live.addEventListener('click', (event) => {
    const link = event.target.closest('a[data-view]');
    if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    history.pushState(null, '', link.search + location.hash);
    connect();
  });
  addEventListener('popstate', () => {
    filter.value = new URLSearchParams(location.search).get('filter') ?? '';
    if (source && location.search !== query) connect();
  });

  const FILTER_AFTER = 200;
  let typed = 0;
  function applyFilter() {
    clearTimeout(typed);
    const parameters = new URLSearchParams(location.search);
    const text = filter.value.trim();
    if (text === (parameters.get('filter') ?? '')) return;
    parameters.delete('from');
    if (text) parameters.set('filter', text);
    else parameters.delete('filter');
    history.replaceState(null, '', `?${parameters}${location.hash}`);
    connect();
  }
  filter.addEventListener('input', () => {
    clearTimeout(typed);
    typed = setTimeout(applyFilter, FILTER_AFTER);
  });
  search.addEventListener('submit', (event) => {
    event.preventDefault();
    applyFilter();
  });
  filter.addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && filter.value) {
      filter.value = '';
      applyFilter();
      event.preventDefault();
    }
  });
  function openSection() {
    document.getElementById(location.hash.slice(1))?.closest('details')?.setAttribute('open', '');
  }
  addEventListener('hashchange', openSection);
  addEventListener('keydown', (event) => {
    const typing = event.target instanceof HTMLInputElement || event.ctrlKey || event.metaKey || event.altKey;
    if (event.key === '/' && !typing) {
      event.preventDefault();
      filter.focus();
    }
  });

  status.textContent = '';
  openSection();
  showState();
  setInterval(showState, 500);
  connect();
})();
