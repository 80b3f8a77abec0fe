// Draws the dashboards with data of a real Prometheus: starts simulated nodes (`podmeter demo`) and a Prometheus with the
// rules, waits, sends it the queries of each panel as Grafana does, and has Chromium draw the answers with Grafana's own
// libraries (draw.jsx). Writes dashboard-NAME.png; exits with 1 when a panel is empty without a text for that, or a query
// fails.
//
//   npm ci --prefix tests/dashboards
//   node tests/dashboards/pictures.mjs [--minutes 15] [--output docs/pictures] [--expand] [NAME...]
//
// --expand opens the collapsed rows. --prometheus URL draws what that server has, and starts nothing. PODMETER_BINARY is
// the binary to run [default: target/debug/podmeter]. Needs prometheus and chromium.

import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

import { build } from 'esbuild';
import UPNG from 'upng-js';

import { Browser } from '../page/browser.mjs';
import { Fleet, SCRAPE_SECONDS, range, vector } from './fleet.mjs';

const HERE = fileURLToPath(new URL('.', import.meta.url));
const DASHBOARDS = join(HERE, '../../dashboards');
// What variables without "All" are set to: a node on which faults are simulated, and a GPU of it that a pod holds.
const NODE = 'gpu-h100-2';
const GPU = `podmeter_device_info{node="${NODE}",gpu="5"}`;
// The pictures show it at a time when something is wrong.
const FAULT = `podmeter_device_healthy{node="${NODE}",gpu="5"} == 0 and on (gpu_uuid) podmeter_device_allocated_ratio == 1`;
const FAULTS_REPEAT_SECONDS = 150;
const LIMIT_BYTES = 290 * 1024;
// Dashboard and panel, and why it is rightly empty.
const EMPTY = new Map([
  ['node / CPUs', 'the simulated kubelet has no CPU manager'],
  ['node / Memory and hugepages', 'the simulated kubelet has no memory manager'],
]);

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    minutes: { type: 'string', default: '15' },
    output: { type: 'string', default: join(HERE, '../../docs/pictures') },
    prometheus: { type: 'string' },
    expand: { type: 'boolean', default: false },
  },
});
const names = positionals.length ? positionals : readdirSync(DASHBOARDS).filter((file) => file.endsWith('.json')).map((file) => file.slice(0, -5));
const seconds = Number(options.minutes) * 60;

const directory = mkdtempSync(join(tmpdir(), 'podmeter-dashboards-'));
let browser;
let fleet;
let server;
for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => finish().finally(() => process.exit(1)));
try {
  if (!options.prometheus) {
    fleet = await Fleet.start(directory);
    console.error(`${fleet.prometheus}: scrapes for ${options.minutes} minutes`);
    // A rate needs a minute before its first point.
    await new Promise((resolve) => { setTimeout(resolve, (seconds + 60) * 1000); });
  }
  const prometheus = options.prometheus ?? fleet.prometheus;
  await bundle();
  server = await serve();
  browser = await Browser.start();
  mkdirSync(options.output, { recursive: true });
  const to = await moment(prometheus);
  const unexpected = [];
  for (const name of names) unexpected.push(...await picture(name, prometheus, to));
  if (unexpected.length) {
    console.error(`empty: ${unexpected.join('; ')}`);
    process.exitCode = 1;
  }
} finally {
  await finish();
}

async function finish() {
  await browser?.stop();
  server?.close();
  await fleet?.stop();
  rmSync(directory, { recursive: true, force: true, maxRetries: 10 });
}

async function bundle() {
  await build({
    entryPoints: [join(HERE, 'draw.jsx')], outfile: join(directory, 'draw.js'), bundle: true, jsx: 'automatic', format: 'iife',
    define: { 'process.env.NODE_ENV': '"production"' }, loader: { '.ttf': 'empty' }, logLevel: 'error',
  });
  const styles = '<link rel="icon" href="data:,"><link rel="stylesheet" href="draw.css"><style>body { margin: 0 }</style>';
  const scripts = '<script src="draw.js"></script><script src="input.js"></script>';
  writeFileSync(join(directory, 'index.html'), `<!doctype html><meta charset="utf-8">${styles}<div id="root"></div>${scripts}`);
}

// The page, and what Grafana's libraries load from their server: icons and fonts.
async function serve() {
  const types = { html: 'text/html', js: 'text/javascript', css: 'text/css', svg: 'image/svg+xml', woff2: 'font/woff2' };
  const modules = join(HERE, 'node_modules');
  const file = (path) => {
    if (path.startsWith('/public/build/img/')) return join(modules, '@grafana/ui/dist', path.replace('/build', ''));
    if (path.startsWith('/public/fonts/inter/')) return join(modules, '@fontsource-variable/inter/files/inter-latin-wght-normal.woff2');
    return join(directory, path);
  };
  const server = createServer((request, response) => {
    try {
      const path = new URL(request.url, 'http://localhost').pathname;
      response.setHeader('content-type', types[path.split('.').at(-1)]);
      response.end(readFileSync(file(path)));
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((resolve) => { server.listen(0, '127.0.0.1', resolve); });
  return server;
}

// Writes one picture; returns the panels that are empty and should not be.
async function picture(name, prometheus, to) {
  const dashboard = JSON.parse(readFileSync(join(DASHBOARDS, `${name}.json`), 'utf8'));
  if (options.expand) dashboard.panels = expanded(dashboard.panels);
  const [from, step] = [to - seconds, Math.max(SCRAPE_SECONDS, Math.ceil(seconds / 240 / SCRAPE_SECONDS) * SCRAPE_SECONDS)];
  const gpus = await vector(prometheus, GPU, to);
  const variables = dashboard.templating.list.slice(1).map((variable) => {
    if (variable.type === 'textbox') return { name: variable.name, label: variable.label, value: variable.query };
    const one = variable.name === 'gpu' ? gpus[0].metric.gpu_uuid : NODE;
    return { name: variable.name, label: variable.label, all: variable.allValue, value: variable.includeAll ? 'All' : one };
  });
  const window = Math.max(step + SCRAPE_SECONDS, 4 * SCRAPE_SECONDS);
  const fill = (query) => [
    ['$__rate_interval_ms', `${window * 1000}`], ['$__rate_interval', `${window}s`], ['$__range', `${seconds}s`],
    ...variables.map(({ name: variable, all, value }) => [`$${variable}`, all ?? value]),
  ].reduce((text, [variable, value]) => text.replaceAll(variable, value), query);
  const answer = ({ expr, instant }) => (instant ? vector(prometheus, fill(expr), to) : range(prometheus, fill(expr), from, to, step));
  const answers = {};
  for (const { id, targets } of dashboard.panels) if (targets) answers[id] = await Promise.all(targets.map(answer));
  const xids = await vector(prometheus, fill(dashboard.annotations.list[0].expr), to);
  const input = {
    dashboard, answers, variables, from: from * 1000, to: to * 1000, step: step * 1000,
    annotations: xids.map(({ values: [[, time]] }) => Number(time)),
  };
  writeFileSync(join(directory, 'input.js'), `window.input = ${JSON.stringify(input)};`);

  const page = await browser.open(`http://127.0.0.1:${server.address().port}/index.html`, { width: 1600, height: 900 });
  const { panels, width, height } = await page.ask('window.draw(window.input)');
  await page.look({ dark: true, width, height });
  await new Promise((resolve) => { setTimeout(resolve, 1000); });
  const file = join(options.output, `dashboard-${name}.png`);
  const bytes = small(await page.screenshot());
  writeFileSync(file, bytes);
  await page.close();
  const problems = page.problems.filter((problem) => !problem.includes('i18next'));
  if (problems.length) throw new Error(`${name}: ${problems[0]}`);
  const empty = panels.filter((panel) => panel.empty).map((panel) => panel.title);
  console.error(`${file}: ${width} × ${height}, ${Math.round(bytes.length / 1024)} KiB; empty: ${empty.join(', ') || 'none'}`);
  return panels.filter((panel) => panel.empty && !panel.text).map(({ title }) => `${name} / ${title}`).filter((place) => !EMPTY.has(place));
}

// The next scrape with the fault, which comes once in each simulated day.
async function moment(prometheus) {
  const deadline = Date.now() + 4 * FAULTS_REPEAT_SECONDS * 1000;
  while (Date.now() < deadline) {
    const to = Math.floor(Date.now() / 1000 / SCRAPE_SECONDS) * SCRAPE_SECONDS;
    if ((await vector(prometheus, FAULT, to)).length > 0) return to;
    await new Promise((resolve) => { setTimeout(resolve, 1000); });
  }
  throw new Error(`no ${FAULT} in ${4 * FAULTS_REPEAT_SECONDS} s`);
}

// With as many colours as its size allows.
function small(png) {
  const image = UPNG.decode(png);
  const encoded = (colors) => Buffer.from(UPNG.encode(UPNG.toRGBA8(image), image.width, image.height, colors));
  return [256, 128, 64].map(encoded).find((bytes, index) => bytes.length < LIMIT_BYTES || index === 2);
}

// All rows open, as Grafana moves what is below them.
function expanded(panels) {
  const all = [];
  let more = 0;
  for (const panel of panels) {
    const inside = panel.panels ?? [];
    for (const one of [panel, ...inside]) all.push({ ...one, collapsed: false, gridPos: { ...one.gridPos, y: one.gridPos.y + more } });
    if (inside.length) more += Math.max(...inside.map(({ gridPos: { y, h } }) => y + h)) - panel.gridPos.y - 1;
  }
  return all;
}
