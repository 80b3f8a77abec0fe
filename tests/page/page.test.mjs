// The page of a running demo in a real browser: `node --test tests/page/` after `npm ci` there. scripts/check does both.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';

import { Browser, until } from './browser.mjs';
import { Demo, freePort } from './podmeter.mjs';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const LIVE = "document.getElementById('status').textContent === 'Live'";

let browser;
let demo;

before(async () => {
  [browser, demo] = await Promise.all([Browser.start(), freePort().then((port) => new Demo(port, '--churn').start())]);
});

after(async () => {
  await browser?.stop();
  await demo?.stop();
});

// Conditions for every page.
async function finish(page) {
  assert.deepEqual(page.problems, [], 'no console error, no refused resource');
  const hosts = new Set(page.requests.filter((url) => !url.startsWith('data:')).map((url) => new URL(url).origin));
  assert.deepEqual([...hosts], [new URL(demo.url).origin], 'no request to anybody else');
  await page.close();
}

async function open(look = {}, hash = '') {
  const page = await browser.open(demo.url + hash, look);
  if (look.javascript !== false) await page.until('the page to be live', LIVE);
  return page;
}

// Cards or rows that the filter shows.
const rows = (part) => `[...document.querySelectorAll('${part === 'devices' ? '.device' : '.containers tbody tr'}')].filter((row) => !row.hidden).map((row) => row.innerText)`;
// The figures of a column, of the containers that hold a device.
const figures = (name) => `[...document.querySelectorAll('.containers tr:not(.ended) [data-figure="${name}"]')].map((figure) => Number(figure.dataset.value ?? -1))`;
const descending = (values) => assert.deepEqual(values, [...values].sort((one, other) => other - one), values.join('; '));

test('it shows devices, holders, charts, containers and sources', async () => {
  const page = await open();
  const devices = await page.ask(rows('devices'));
  assert.equal(devices.length, 8);
  for (const device of devices) assert.match(device, /GPU \d[^]*H100[^]*healthy[^]*busy now\s[^]*%[^]*GiB[^]*W/);
  await page.until('a chart of each quantity', "document.querySelectorAll('.devices .chart path.line').length >= 24");
  await page.until('bars of use', "document.querySelectorAll('.bars .bar rect').length > 0");
  assert.match(await page.ask("document.querySelector('.chart').getAttribute('aria-label')"), /^busy, last 5 min: \d+ % to \d+ %/);
  assert.match(await page.ask("document.querySelector('[data-key=section-sources] table').textContent"), /kubelet[^]*succeeded/);
  await finish(page);
});

test('a heading sorts the containers, also as a link', async () => {
  const page = await open();
  await page.until('containers', `${figures('held')}.length > 2`);
  const loads = page.loads;
  const sorted = "document.querySelector('.containers [aria-sort=descending]').innerText";
  assert.match(await page.ask(sorted), /^Idle/);
  for (const [heading, figure] of [['Held', 'held'], ['Energy', 'energy'], ['Busy', 'busy']]) {
    await page.ask(`[...document.querySelectorAll('.containers thead a')].find((link) => link.innerText.trim() === '${heading}').click()`);
    await page.until(`the order by ${heading}`, `${sorted}.startsWith('${heading}')`);
    descending(await page.ask(figures(figure)));
  }
  assert.equal(await page.ask('location.search'), '?window=5m&sort=busy');
  assert.equal(page.loads, loads, 'without a load');
  await finish(page);
  const linked = await browser.open(`${demo.url}?sort=energy`, { javascript: false });
  const { root } = await linked.call('DOM.getDocument', { depth: 0 });
  const { outerHTML } = await linked.call('DOM.getOuterHTML', { nodeId: root.nodeId });
  descending([...outerHTML.matchAll(/<tr role="row" data-key[^]*?data-figure="energy" data-value="([^"]+)"/g)].map(([, value]) => Number(value)));
  await finish(linked);
});

test('a young page draws the time there is, with scale, bounds and the value under the pointer', async () => {
  const other = await new Demo(await freePort()).start();
  try {
    const page = await browser.open(other.url);
    await page.until('the page to be live', LIVE);
    const plot = (selector) => `document.querySelector('.power .plot ${selector}')`;
    await page.until('readings', plot('.known'));
    for (const [name, words] of [['1m', 'last min'], ['5m', 'last 5 min'], ['30m', 'last 30 min']]) {
      await page.ask(`document.querySelector('.windows a[href*="window=${name}"]').click()`);
      await page.until(words, `document.querySelector('.windows [aria-current]').innerText === '${words}' && document.querySelector('.measure').innerText.includes('${words}')`);
      assert.match(await page.ask("document.querySelector('.containers [aria-sort]').innerText"), new RegExp(words));
      const part = `${plot('.known')}.getBoundingClientRect().width / ${plot('.chart')}.getBoundingClientRect().width`;
      assert.ok(await page.ask(part) > 0.5, 'most of it is known');
      assert.match(await page.ask(`${plot('.axis')}.innerText`), /^−[\d:]+( s| min)?\s+now$/);
      assert.match(await page.ask(`${plot('.scale')}.innerText`), /^\d+ W$/);
    }
    const [x, y] = await page.ask(`(() => { const { right, top } = ${plot('.chart')}.getBoundingClientRect(); return [right - 3, top + 3]; })()`);
    await page.call('Input.dispatchMouseEvent', { type: 'mouseMoved', x, y });
    await page.until('the value', "/^\\d+ W, 0 s ago$/.test(document.getElementById('tip').innerText)");
    assert.match(await page.ask("getComputedStyle(document.querySelector('.chart')).backgroundImage"), /repeating-linear-gradient/, 'it is hatched');
    const answer = await fetch(`${other.url}?window=2m`);
    assert.equal(answer.status, 400);
    assert.match(await answer.text(), /one of 1m, 5m, 30m/);
    assert.deepEqual(page.problems, []);
    await page.close();
  } finally {
    await other.stop();
  }
});

// The figures of the page and the metrics, of about the same second.
const FIGURES = `Promise.all(['/', '/metrics'].map((url) => fetch(url).then((answer) => answer.text()))).then(([html, text]) => {
  const page = new DOMParser().parseFromString(html, 'text/html');
  const samples = (name) => [...text.matchAll(new RegExp('^' + name + '\\\\{(.*)\\\\} (\\\\S+)$', 'gm'))].map(([, labels, value]) => [labels, Number(value)]);
  const value = (name, ...parts) => samples(name).find(([labels]) => parts.every((part) => labels.includes(part)))?.[1];
  const figure = (row, name) => { const text = row.querySelector('[data-figure="' + name + '"]')?.dataset.value; return text === undefined ? undefined : Number(text); };
  const pairs = [];
  for (const row of page.querySelectorAll('.containers tr:not(.ended)[data-key]')) {
    const [container, uuid] = row.dataset.key.split(' ');
    const [namespace, pod] = container.split('/');
    for (const [name, metric] of [['gpu-time', 'allocated'], ['busy', 'busy'], ['idle', 'idle'], ['unknown', 'uncovered']]) {
      pairs.push([row.dataset.key + ' ' + name, figure(row, name), value('podmeter_container_' + metric + '_seconds_total', 'namespace="' + namespace + '"', 'pod="' + pod + '"', uuid), 4]);
    }
  }
  for (const card of page.querySelectorAll('.device')) {
    const healthy = card.querySelector('.head .badge').innerText;
    pairs.push([card.dataset.key, healthy === 'healthy' ? 1 : 0, card.querySelector('.mig .badge.bad') ? 1 : value('podmeter_device_healthy', card.dataset.key), 0]);
    if (!card.querySelector('.mig')) pairs.push([card.dataset.key + ' busy', figure(card, 'busy-now'), value('podmeter_device_utilization_ratio', card.dataset.key), 0.0006]);
  }
  return pairs.filter(([, one, other, by]) => one !== other && !(Math.abs(one - other) <= by));
})`;

for (const [name, ...options] of [['MIG', '--profile', '8xh100-mig'], ['faults', '--faults', '--fault-speed', '10'], ['time slicing', '--profile', '8xh100-timesliced']]) {
  test(`page and metrics agree from the start on: ${name}`, async () => {
    const other = await new Demo(await freePort(), ...options).start();
    try {
      const page = await browser.open(other.url);
      for (let time = 0; time < 3; time += 1) {
        let differences;
        await until('agreement', async () => { differences = await page.ask(FIGURES); return differences.length === 0; }).catch(() => assert.deepEqual(differences, []));
        await page.until('another second', `document.querySelector('.about').innerText !== ${JSON.stringify(await page.text('.about'))}`);
      }
      await page.look({ width: 1024, height: 768 });
      assert.deepEqual(await page.ask(CUT), [], 'no text is cut at 1024 pixels');
      assert.ok(await page.ask('document.documentElement.scrollWidth') <= 1024);
      assert.deepEqual(page.problems, []);
      await page.close();
    } finally {
      await other.stop();
    }
  });
}

test('a row opens to its metrics and events, and stays open', async () => {
  const page = await open();
  await page.until('a container', "document.querySelector('.containers tbody .more')");
  for (const [row, metric] of [['.device', 'podmeter_device_power_watts'], ['.containers tbody tr', 'podmeter_container_allocated_seconds_total']]) {
    await page.ask(`window.row = document.querySelector('${row}'); row.querySelector('.more > summary').click()`);
    await page.until(metric, `row.innerText.includes('${metric}') && row.innerText.includes('Events')`);
    const value = `[...row.querySelectorAll('.metrics dt')].find((name) => name.querySelector('code').innerText === '${metric}').nextSibling.innerText`;
    const before = await page.ask(value);
    await page.until('a newer value', `${value} !== ${JSON.stringify(before)}`);
    assert.ok(await page.ask("row.querySelector('.more').open && row.isConnected"), 'it stays open');
    await page.ask("row.querySelector('.more > summary').click()");
  }
  await page.ask("window.button = document.querySelector('.device .more > div .copy'); addEventListener('copy', () => { window.copied = document.activeElement.value; }); button.closest('.more').open = true; button.click()");
  assert.match(await page.ask('window.copied'), /^(rate\()?podmeter_device_\w+\{gpu_uuid="GPU-/);
  const filled = "button.closest('.more').innerText.replaceAll('copied', 'copy')";
  const shown = await page.ask(filled);
  await page.until('newer values', `${filled} !== ${JSON.stringify(shown)}`);
  assert.equal(await page.ask('button.innerText'), 'copied', 'newer values do not undo it');
  await page.ask("document.querySelector('.device .more').open = false");
  const link = await page.ask("document.querySelector('.device:nth-child(2) .more a').href");
  assert.equal(link.startsWith(`${demo.url}detail?key=GPU`), true, link);
  assert.match(await (await fetch(link)).text(), /podmeter_device_power_watts/);
  assert.equal((await fetch(`${demo.url}detail?key=GPU-none`)).status, 404);
  await page.ask("document.querySelector('[data-key=section-containers] > details > summary').click()");
  const second = await page.text('.about');
  await page.until('an update', `document.querySelector('.about').innerText !== ${JSON.stringify(second)}`);
  assert.equal(await page.ask("document.querySelector('[data-key=section-containers] > details').open"), false, 'a section stays closed');
  await page.ask("document.querySelector('#sections a[href=\"#containers\"]').click()");
  await page.until('the section to open', "document.querySelector('[data-key=section-containers] > details').open");
  await finish(page);
});

// Elements whose content is wider than they are: their text would be cut.
const CUT = "[...document.querySelectorAll('#live *')].filter((part) => !['svg', 'path', 'rect', 'summary'].includes(part.localName) && part.checkVisibility() && part.clientWidth > 0 && part.scrollWidth > part.clientWidth + 1).map((part) => part.outerHTML.slice(0, 160))";

test('eight GPUs with seven MIG devices each fit on one screen, and a phone', async () => {
  const other = await new Demo(await freePort(), '--profile', '8xh100-mig-1g', '--churn').start();
  try {
    const page = await browser.open(other.url, { width: 1440, height: 900 });
    await page.until('the page to be live', LIVE);
    await page.until('holders', `${figures('held')}.length > 5`);
    assert.equal(await page.ask("document.querySelectorAll('.device .mig').length"), 56);
    const edges = await page.ask("[...document.querySelectorAll('.device, .mig')].map((part) => { const { right, bottom } = part.getBoundingClientRect(); return [right, bottom]; })");
    for (const [right, bottom] of edges) assert.ok(right <= 1440 && bottom <= 900, `${right}, ${bottom}`);
    assert.deepEqual(await page.ask(CUT), []);
    assert.ok(await page.ask("[...document.querySelectorAll('.mig .part')].some((part) => part.innerText === 'free')"), 'a free device is called free');
    await page.close();
    const phone = await browser.open(other.url, { width: 390, height: 844 });
    await phone.until('the page to be live', LIVE);
    assert.deepEqual(await phone.ask(CUT), []);
    assert.ok(await phone.ask('document.documentElement.scrollWidth') <= 390);
    const screens = await phone.ask('document.documentElement.scrollHeight / 844');
    assert.ok(screens < 8, `${screens} screens`);
    await phone.close();
  } finally {
    await other.stop();
  }
});

test('a rack, its superchips and their power are shown and fit, also on a phone', async () => {
  const other = await new Demo(await freePort(), '--profile', '4xgb200').start();
  try {
    for (const size of [{ width: 1440, height: 900 }, { width: 390, height: 844 }]) {
      const page = await browser.open(other.url, size);
      await page.until('the page to be live', LIVE);
      const devices = await page.ask(rows('devices'));
      assert.equal(devices.length, 4);
      for (const device of devices) assert.match(device, /GB200[^]*healthy[^]*power\s\d+ W[^]*module \d+ W · \d+ °C/);
      assert.deepEqual(await page.ask(CUT), []);
      assert.ok(await page.ask('document.documentElement.scrollWidth') <= size.width);
      assert.deepEqual(page.problems, []);
      await page.close();
    }
  } finally {
    await other.stop();
  }
});

test('it updates without a load, and keeps focus and selection', async () => {
  const page = await open();
  const loads = page.loads;
  await page.ask("document.querySelector('.containers thead a').focus()");
  await page.ask("window.row = document.querySelector('.device'); true");
  const before = await page.text('.about');
  await page.until('another second on the page', `document.querySelector('.about').innerText !== ${JSON.stringify(before)}`);
  assert.equal(page.loads, loads, 'no load');
  assert.ok(await page.ask("window.row === document.querySelector('.device')"), 'the card is the same one');
  assert.ok(await page.ask("document.activeElement === document.querySelector('.containers thead a')"), 'the focus stays');
  await finish(page);
});

test('the filter matches pods, namespaces and devices, and is kept in the URL', async () => {
  const page = await open();
  const loads = page.loads;
  // The state of the page once it has the filter.
  const filtered = (text) => page.until(text, `new URLSearchParams(location.search).get('filter') === ${JSON.stringify(text)} && document.querySelector('.about a').search.includes(${JSON.stringify(encodeURIComponent(text).replaceAll('-', '%2D'))})`);
  const count = (table) => page.ask(`${rows(table)}.length`);
  await page.ask("document.getElementById('filter').focus()");
  await page.type('device:gpu-');
  await filtered('device:gpu-');
  assert.equal(await count('devices'), 8);
  await page.press('Escape');
  await page.until('no filter', "!location.search.includes('filter') && document.getElementById('found').innerText === ''");
  await page.type('device:3');
  await filtered('device:3');
  assert.equal(await count('devices'), 1, 'UUIDs have a 3 too');
  await page.press('Escape');

  const pod = await page.until('a pod', "document.querySelector('.containers tbody tr:not(.ended) th')?.firstChild.data.trim()");
  await page.type(`pod:${pod}`);
  await filtered(`pod:${pod}`);
  const found = await page.ask(rows('containers'));
  assert.ok(found.length >= 1 && found.every((row) => row.includes(pod)), found.join());
  assert.ok(await count('devices') < 8);
  assert.match(await page.text('#found'), /^\d+ GPUs?, 1 container, \d+ events?$/);
  const second = await page.text('.about');
  await page.until('an update', `document.querySelector('.about').innerText !== ${JSON.stringify(second)}`);
  assert.ok((await page.ask(rows('containers'))).every((row) => row.includes(pod)), 'an update does not undo it');
  assert.equal(await page.ask("document.activeElement.id"), 'filter');
  assert.equal(page.loads, loads, 'without a load');
  await finish(page);
});

test('a row that is open stays open when the filter is cleared', async () => {
  const page = await open();
  await page.until('a container', "document.querySelector('.containers tbody .more')");
  await page.ask("window.row = document.querySelector('.containers tbody tr'); row.querySelector('.more').open = true");
  for (const [text, sums] of [['device:gpu', true], ['', false]]) {
    await page.ask(`document.getElementById('filter').value = '${text}'; document.getElementById('search').requestSubmit()`);
    await page.until(`the filter "${text}"`, `!!document.querySelector('.namespaces') === ${sums}`);
  }
  assert.ok(await page.ask("row.isConnected && row.querySelector('.more').open && row.querySelector('th').innerText"));
  await finish(page);
});

test('rows that an event left out and the page does not have are requested once', async () => {
  const page = await browser.open('about:blank');
  await page.call('Page.addScriptToEvaluateOnNewDocument', { source: `
    window.streams = [];
    window.EventSource = class extends EventTarget { constructor() { super(); streams.push(this); } close() {} };` });
  await page.go(demo.url);
  const rows = Array.from({ length: 64 }, (_, row) => `<tr data-key="${row}" data-same></tr>`).join('');
  const text = `<div class="about" data-title="t" data-found=""><time></time></div><table><tbody>${rows}</tbody></table>`;
  await page.ask(`streams[0].dispatchEvent(new MessageEvent('page', { data: ${JSON.stringify(text)} }))`);
  assert.equal(await page.ask('streams.length'), 2);
  await finish(page);
});

test('tiles, headings and sums follow the filter, also without JavaScript', async () => {
  const page = await open({}, '?filter=namespace%3Ateam-vision');
  const inNamespace = await page.until('rows', `(() => { const found = ${rows('containers')}; return found.length && found; })()`);
  assert.ok(inNamespace.every((row) => row.includes('team-vision')), inNamespace.join());
  assert.equal(await page.ask("document.getElementById('filter').value"), 'namespace:team-vision');
  // Of one moment.
  const [tiles, sums, held, heading] = await page.ask(`(() => {
    const figure = (part, name) => part.querySelector('[data-figure="' + name + '"]').dataset.value;
    const [tiles, row] = ['.tiles', '.namespaces tbody tr'].map((part) => document.querySelector(part));
    const names = ['allocated', 'busy-now', 'energy'];
    return [names.map((name) => figure(tiles, name)), names.map((name) => figure(row, name)),
      document.querySelectorAll('.containers tbody tr:not(.ended)').length, document.querySelector('[data-key=section-containers] summary .muted').innerText];
  })()`);
  assert.deepEqual(tiles, sums, 'one namespace has all');
  assert.equal(await page.ask("document.querySelectorAll('.namespaces tbody tr').length"), 1);
  assert.ok(heading.startsWith(`${held} held`), heading);
  await page.ask("document.getElementById('filter').value = 'nothing-is-called-this'; document.getElementById('search').requestSubmit()");
  await page.until('the message that nothing matches', "document.querySelector('[data-key=section-containers]').innerText.includes('No container matches the filter.')");
  assert.equal(await page.text('#found'), '0 GPUs, 0 containers, 0 events');
  await finish(page);
  const plain = await (await fetch(`${demo.url}?window=1m&sort=name&filter=device%3A3`)).text();
  assert.equal(plain.match(/<li class="device"/g).length, 1);
  assert.match(plain, /<form id="search"[^>]* action="\/">.*name="window" value="1m"/);
});

test('the charts of a row are in line, at any width', async () => {
  const page = await open();
  for (const width of [1024, 1280, 1440, 1920]) {
    await page.look({ width });
    const heights = await page.ask("[...document.querySelectorAll('.device')].map((card) => [...card.querySelectorAll('.measure .chart')].map((chart) => chart.getBoundingClientRect().top - card.getBoundingClientRect().top).join())");
    assert.deepEqual([...new Set(heights)].length, 1, `${width}: ${heights}`);
    assert.deepEqual(await page.ask(CUT), [], `no text is cut at ${width} pixels`);
  }
  await finish(page);
});

test('it shows that it is stale, and recovers', async () => {
  const other = await new Demo(await freePort()).start();
  try {
    const page = await browser.open(other.url);
    await page.until('the page to be live', LIVE);
    const stale = "document.getElementById('status').textContent.startsWith('Stale')";
    assert.equal(await page.ask('document.title'), 'demo · podmeter');
    other.signal('SIGSTOP');
    await page.until('the state Stale with a stopped agent', stale);
    const [, since] = (await page.text('#status')).match(/since (\S+ UTC)\./);
    assert.ok((await page.text('.about')).includes(`as of ${since}`), 'the same clock as on the page');
    await page.until('the title', "document.title === 'Stale · demo · podmeter'");
    assert.equal(await page.ask("document.getElementById('status').getAttribute('role')"), 'status', 'it is announced');
    assert.ok(await page.ask("document.getElementById('status').checkVisibility()"));
    other.signal('SIGCONT');
    await page.until('it to go on', LIVE);
    await other.stop('SIGKILL');
    await page.until('the state Stale without an agent', stale);
    await other.start();
    await page.until('the new agent to be seen', LIVE);
    assert.equal(page.loads, 1, 'without a reload');
    assert.equal(page.problems.filter((problem) => !problem.includes('ERR_')).length, 0, page.problems.join());
    await page.close();
  } finally {
    await other.stop();
  }
});

test('open streams do not delay the shutdown', async () => {
  const other = await new Demo(await freePort()).start();
  const page = await browser.open(other.url);
  await page.until('the page to be live', LIVE);
  assert.equal(await other.stop('SIGTERM'), 0);
  assert.ok(!other.log.includes('in time'), other.log);
  await page.close();
});

test('without JavaScript it has the same tables', async () => {
  const page = await open({ javascript: false });
  const { root } = await page.call('DOM.getDocument', { depth: 0 });
  const count = async (selector) => (await page.call('DOM.querySelectorAll', { nodeId: root.nodeId, selector })).nodeIds.length;
  assert.equal(await count('.device'), 8);
  assert.ok(await count('table.containers tbody tr') > 0);
  const { outerHTML } = await page.call('DOM.getOuterHTML', { nodeId: root.nodeId });
  assert.match(outerHTML, /without JavaScript, reload to update/);
  await finish(page);
});

test('it can be used by keyboard', async () => {
  const page = await open();
  await page.press('Tab');
  assert.equal(await page.ask('document.activeElement.className'), 'skip');
  await page.press('Enter');
  await page.until('the jump', "document.activeElement.id === 'devices'");
  await page.press('/');
  assert.equal(await page.ask('document.activeElement.id'), 'filter');
  assert.equal(await page.ask('document.activeElement.value'), '');
  const outline = "getComputedStyle(document.activeElement).outlineStyle !== 'none'";
  assert.ok(await page.ask(outline), 'the focus is seen');
  await page.ask("document.querySelector('.containers thead a').focus()");
  await page.press('Enter');
  await page.until('the order by name', "document.querySelector('.containers [aria-sort=ascending]')");
  await page.ask("document.querySelector('.device .more > summary').focus()");
  await page.press('Enter');
  await page.until('the metrics', "document.querySelector('.device .metrics dt')");
  await finish(page);
});

for (const [name, look] of Object.entries({
  light: {},
  dark: { dark: true },
  'on a phone': { width: 360, height: 740 },
  'on a phone, dark': { width: 360, height: 740, dark: true },
})) {
  test(`axe finds no violation: ${name}`, async () => {
    const page = await open(look);
    await page.until('events and bars', "document.querySelectorAll('.bars .bar rect').length > 0");
    for (const row of ['.device', '.containers tbody tr']) {
      await page.ask(`document.querySelector('${row} .more > summary').click()`);
      await page.until('its metrics', `document.querySelector('${row} .metrics dt')`);
    }
    assert.equal(await page.ask("document.querySelectorAll('h1').length"), 1);
    await page.ask(`${AXE}; true`);
    const violations = await page.ask(`axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => violations.map(
      ({ id, impact, nodes }) => id + ' (' + impact + '): ' + nodes.slice(0, 3).map((node) => node.html.slice(0, 200) + ' ' + node.failureSummary).join(' | ')))`);
    assert.deepEqual(violations, []);
    assert.deepEqual(await page.ask(CUT), [], 'no text is cut');
    const overflow = await page.ask('document.documentElement.scrollWidth - document.documentElement.clientWidth');
    assert.ok(overflow <= 0, `it runs ${overflow} pixels over the edge`);
    await page.ask("document.querySelectorAll('.more[open]').forEach((row) => { row.open = false; })");
    const screens = await page.ask('document.documentElement.scrollHeight / innerHeight');
    assert.ok(screens < 6, `${screens} screens high`);
    await finish(page);
  });
}

test('a new client connects despite many open streams', async () => {
  const other = await new Demo(await freePort()).start();
  const streams = [];
  try {
    // More than there are connections: the silent ones are closed.
    for (let listener = 0; listener < 80; listener += 1) {
      const stop = new AbortController();
      const answer = await fetch(`${other.url}api/v1/stream`, { signal: stop.signal, headers: { 'accept-encoding': 'identity' } });
      assert.equal(answer.status, 200);
      // A response that is not read is cancelled.
      streams.push({ stop, answer });
    }
    const page = await browser.open(other.url);
    await page.until('it to come in', LIVE);
    await page.close();
  } finally {
    for (const { stop } of streams) stop.abort();
    await other.stop();
  }
});

test('a new stream does not wait for the next event', async () => {
  const answer = await fetch(`${demo.url}api/v1/stream`);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  await until('an event', async () => {
    text += (await reader.read()).value;
    return text.includes('event: node\n') && text.endsWith('\n\n');
  });
  const [line] = text.match(/^data: .*$/m);
  assert.equal(JSON.parse(line.slice('data: '.length)).node_name, 'demo');
  await reader.cancel();
});
