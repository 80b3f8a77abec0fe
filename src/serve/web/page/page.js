'use strict';
(() => {
  // Events come every second; after this time without one, the page is stale.
  const STALE_AFTER = 5000;
  const RECONNECT_AFTER = 1500;
  const live = document.getElementById('live');
  const status = document.getElementById('status');
  const search = document.getElementById('search');
  const filter = document.getElementById('filter');
  const found = document.getElementById('found');
  let received = performance.now();
  let receivedAt = new Date();
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
      receivedAt = new Date();
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
    const next = silent > STALE_AFTER ? 'stale' : hasReceived ? 'live' : 'waiting';
    // Only changes are announced to screen readers.
    if (next === state) return;
    state = next;
    const stale = state === 'stale';
    status.className = state;
    document.documentElement.classList.toggle('is-stale', stale);
    status.textContent = stale
      ? `Stale: no data from podmeter since ${receivedAt.toLocaleTimeString()}. Older values are shown; reconnecting.`
      : state === 'live' ? 'Live' : '';
  }

  // Changes only what differs, to keep focus, selection and scroll position. What can come, go or move beside others of its
  // kind, or has state, has an `id` or `data-key`, which no sibling has.

  const parser = document.createElement('template');
  function show(text) {
    const focused = document.activeElement;
    parser.innerHTML = text;
    patchChildren(live, parser.content);
    parser.innerHTML = '';
    applyFilter();
    for (const row of live.querySelectorAll('.more[open]')) fill(row);
    if (focused && focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
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
  const KEPT = ['hidden', 'open'];

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

  // Links to another window or order change the stream, not the document.

  live.addEventListener('click', (event) => {
    const link = event.target.closest('a[data-view]');
    if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    history.pushState(null, '', link.search + location.hash);
    connect();
  });
  addEventListener('popstate', () => { if (source && location.search !== query) connect(); });

  // The filter, kept in the URL.

  const FIELDS = ['namespace', 'pod', 'container', 'device'];

  // Each word must match; `pod:x` matches pods only, `x` everything. `device:3` is no part of a UUID, but begins a word.
  function matcher(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
      const [field, rest] = word.split(/:(.*)/s);
      return FIELDS.includes(field) && rest !== undefined ? { field: `${field}:`, rest } : { field: '', rest: word };
    });
    return (found) => {
      const lines = found.split('\n');
      return words.every(({ field, rest }) =>
        lines.some((line) => {
          const value = line.slice(line.indexOf(':') + 1);
          const matches = field === 'device:' ? value.split(' ').some((part) => part.startsWith(rest)) : value.includes(rest);
          return matches && line.startsWith(field);
        }));
    };
  }

  function applyFilter() {
    const matches = matcher(filter.value);
    const filtering = filter.value.trim() !== '';
    let shown = 0;
    for (const section of live.querySelectorAll('section')) {
      // Not those inside an open row.
      const rows = section.querySelectorAll('[data-words]:not(.more *)');
      let here = 0;
      for (const row of rows) {
        row.hidden = filtering && !matches(row.dataset.words);
        if (!row.hidden) here += 1;
      }
      const noMatch = section.querySelector('[data-key=no-match]');
      if (noMatch) noMatch.hidden = rows.length === 0 || here > 0;
      shown += here;
    }
    const text = filtering ? `${shown} found` : '';
    if (found.textContent !== text) found.textContent = text;
  }

  function fromUrl() {
    const parameters = new URLSearchParams(location.hash.slice(1));
    if (parameters.has('filter')) filter.value = parameters.get('filter');
    applyFilter();
    document.getElementById(location.hash.slice(1))?.closest('details')?.setAttribute('open', '');
  }

  filter.addEventListener('input', () => {
    const hash = filter.value ? `#${new URLSearchParams({ filter: filter.value })}` : '';
    history.replaceState(null, '', location.pathname + location.search + hash);
    applyFilter();
  });
  filter.addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && filter.value) {
      filter.value = '';
      filter.dispatchEvent(new Event('input'));
      event.preventDefault();
    }
  });
  search.addEventListener('submit', (event) => event.preventDefault());
  addEventListener('hashchange', fromUrl);
  addEventListener('keydown', (event) => {
    const typing = event.target instanceof HTMLInputElement || event.ctrlKey || event.metaKey || event.altKey;
    if (event.key === '/' && !typing) {
      event.preventDefault();
      filter.focus();
    }
  });

  search.hidden = false;
  status.textContent = '';
  fromUrl();
  showState();
  setInterval(showState, 500);
  connect();
})();
