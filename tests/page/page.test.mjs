// The page of a running demo in a real browser: `node --test tests/page/` after `npm ci` there. scripts/test does both.

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

const rows = (table) => `[...document.querySelectorAll('table.${table} tbody tr')].filter((row) => !row.hidden).map((row) => row.innerText)`;

test('it shows devices, holders, charts, containers and sources', async () => {
  const page = await open();
  const devices = await page.ask(rows('devices'));
  assert.equal(devices.length, 8);
  for (const device of devices) assert.match(device, /GPU \d[^]*H100[^]*healthy[^]*%[^]*GiB[^]*W/);
  await page.until('a chart of each quantity', "document.querySelectorAll('.devices .chart path').length >= 24");
  await page.until('bars of use', "document.querySelectorAll('.holders .bar rect').length > 0");
  assert.match(await page.ask("document.querySelector('.chart').getAttribute('aria-label')"), /^Busy of the last .+: .+ to .+, now \d+ %$/);
  assert.match(await page.text('#freshness + table'), /kubelet[^]*succeeded/);
  await finish(page);
});

test('containers are sorted by idle time', async () => {
  const page = await open();
  const idle = await page.until('containers', "(() => { const found = [...document.querySelectorAll('.containers tr:not(.ended) [data-label=Idle]')].map((cell) => cell.innerText.trim()); return found.length > 1 && found; })()");
  const seconds = idle.map((text) => [...text.matchAll(/(\d+) (d|h|min|s)/g)]
    .reduce((sum, [, count, unit]) => sum + count * { d: 86400, h: 3600, min: 60, s: 1 }[unit], 0));
  assert.deepEqual(seconds, [...seconds].sort((one, other) => other - one), idle.join('; '));
  await finish(page);
});

test('it updates without a load, and keeps focus and selection', async () => {
  const page = await open();
  const loads = page.loads;
  await page.ask("document.querySelector('.devices thead a').focus()");
  await page.ask("window.row = document.querySelector('.devices tbody tr'); true");
  const before = await page.text('.about');
  await page.until('another second on the page', `document.querySelector('.about').innerText !== ${JSON.stringify(before)}`);
  assert.equal(page.loads, loads, 'no load');
  assert.ok(await page.ask("window.row === document.querySelector('.devices tbody tr')"), 'the row is the same one');
  assert.ok(await page.ask("document.activeElement === document.querySelector('.devices thead a')"), 'the focus stays');
  await finish(page);
});

test('the filter matches pods, namespaces and devices, and is kept in the URL', async () => {
  const page = await open();
  const count = (table) => page.ask(`${rows(table)}.length`);
  await page.ask("document.getElementById('filter').focus()");
  await page.type('device:gpu-');
  assert.equal(await count('devices'), 8);
  assert.equal(await page.ask('location.hash'), '#filter=device%3Agpu-');
  await page.press('Escape');
  assert.equal(await page.ask('location.hash'), '');

  const pod = await page.until('a pod', "document.querySelector('.containers tbody tr:not(.ended) th')?.firstChild.data.trim()");
  await page.type(`pod:${pod}`);
  const found = await page.ask(rows('containers'));
  assert.ok(found.length >= 1 && found.every((row) => row.includes(pod)), found.join());
  assert.ok(await count('devices') < 8);
  const namespace = found[0].match(/(\S+) · /)[1];
  const second = await page.text('.about');
  await page.until('an update', `document.querySelector('.about').innerText !== ${JSON.stringify(second)}`);
  assert.ok((await page.ask(rows('containers'))).every((row) => row.includes(pod)), 'an update does not undo it');
  await finish(page);

  const linked = await open({}, `#filter=namespace%3A${namespace}`);
  const inNamespace = await linked.until('rows', `(() => { const found = ${rows('containers')}; return found.length && found; })()`);
  assert.ok(inNamespace.every((row) => row.includes(namespace)), inNamespace.join());
  await linked.ask("location.hash = 'filter=nothing-is-called-this'");
  await linked.until('the message that nothing matches', "document.querySelector('.containers ~ .none').checkVisibility()");
  assert.equal(await linked.text('#found'), '0 found');
  await finish(linked);
});

test('it shows that it is stale, and recovers', async () => {
  const other = await new Demo(await freePort()).start();
  try {
    const page = await browser.open(other.url);
    await page.until('the page to be live', LIVE);
    const stale = "document.getElementById('status').textContent.startsWith('Stale')";
    other.signal('SIGSTOP');
    await page.until('the state Stale with a stopped agent', stale);
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
  assert.equal(await count('table.devices tbody tr[data-words]:not([hidden])'), 8);
  assert.ok(await count('table.containers tbody tr') > 0);
  assert.equal(await count('#search[hidden]'), 1, 'no filter that would do nothing');
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
  await page.ask("document.querySelector('.devices thead a').focus()");
  await page.press('Enter');
  await page.until('the metric', "location.hash.startsWith('#podmeter_') && document.querySelector(':target code').innerText === location.hash.slice(1)");
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
    await page.until('events and bars', "document.querySelectorAll('.holders .bar rect').length > 0");
    await page.ask(`${AXE}; true`);
    const violations = await page.ask(`axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => violations.map(
      ({ id, impact, nodes }) => id + ' (' + impact + '): ' + nodes.slice(0, 3).map((node) => node.html.slice(0, 200) + ' ' + node.failureSummary).join(' | ')))`);
    assert.deepEqual(violations, []);
    const overflow = await page.ask('document.documentElement.scrollWidth - document.documentElement.clientWidth');
    assert.ok(overflow <= 0, `it runs ${overflow} pixels over the edge`);
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
      const answer = await fetch(`${other.url}live`, { signal: stop.signal });
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
