// node tests/page/pictures.mjs [DIRECTORY]: draws the pictures of the documentation from running demos. Needs chromium and tmux.

import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { Browser } from './browser.mjs';
import { BINARY, Demo, freePort } from './podmeter.mjs';

const folder = process.argv[2] ?? fileURLToPath(new URL('../../docs/pictures/', import.meta.url));
// Long enough for the charts of five minutes.
const SECONDS = Number(process.env.SECONDS ?? 330);
// In the pictures of faults, GPU 2 is unhealthy: it happens 10 s after each start of the simulated day of 150 s.
const FAULT = 150;

const wait = (seconds) => new Promise((resolve) => { setTimeout(resolve, seconds * 1000); });

mkdirSync(folder, { recursive: true });
const browser = await Browser.start();
const start = async (...options) => new Demo(await freePort(), ...options).start();
const [faults, mig, shared] = await Promise.all([start('--faults', '--churn'), start('--profile', '8xh100-mig-1g', '--churn'), start('--profile', '8xh100-timesliced', '--churn')]);
try {
  await wait(SECONDS - SECONDS % FAULT + 14);
  await Promise.all([
    draw('page-light', faults, {}),
    draw('page-dark', faults, { dark: true }),
    draw('page-phone', faults, { width: 390, height: 844 }),
    draw('page-mig', mig, {}),
    drawTop('top', shared),
  ]);
} finally {
  await browser.stop();
  await Promise.all([faults.stop(), mig.stop(), shared.stop()]);
}

async function draw(name, demo, look) {
  const page = await browser.open(demo.url, { width: 1440, height: 900, ...look });
  await page.until('the page to be live', `document.getElementById('status').textContent === 'Live'`);
  writeFileSync(join(folder, `${name}.png`), await page.screenshot());
}

// The terminal as tmux has it, drawn by the browser.
async function drawTop(name, demo) {
  const [columns, rows] = [150, 40];
  const directory = mkdtempSync(join(tmpdir(), 'podmeter-top-'));
  const tmux = (...words) => execFileSync('tmux', ['-S', join(directory, 'tmux'), '-f', '/dev/null', ...words], { encoding: 'utf8' });
  try {
    tmux('new-session', '-d', '-x', columns, '-y', rows, '-e', 'COLORTERM=truecolor', BINARY, 'top', '--url', demo.url);
    await wait(65);
    const page = await browser.open(`data:text/html;charset=utf-8,${encodeURIComponent(html(tmux('capture-pane', '-e', '-p')))}`, { width: 1400, height: 800 });
    const [width, height] = await page.ask("(() => { const { width, height } = document.querySelector('pre').getBoundingClientRect(); return [Math.ceil(width), Math.ceil(height)]; })()");
    await page.look({ width, height });
    writeFileSync(join(folder, `${name}.png`), await page.screenshot());
  } finally {
    try { tmux('kill-server'); } catch { /* it has ended */ }
    rmSync(directory, { recursive: true, force: true });
  }
}

// Colours, bold, dim and reverse of the terminal as HTML.
function html(screen) {
  const palette = ['#1b2229', '#ff6b6b', '#74dba4', '#f3c770', '#74b3ff', '#e07bcb', '#3fc1d1', '#e5ebf1'];
  const bright = ['#71808e', '#ff9d9d', '#a1ecc4', '#ffe09b', '#a8d0ff', '#f2a8e2', '#86e1ec', '#ffffff'];
  const cube = (code) => {
    if (code < 16) return (code < 8 ? palette : bright)[code % 8];
    if (code > 231) return `rgb(${Array(3).fill(8 + (code - 232) * 10)})`;
    return `rgb(${[36, 6, 1].map((part) => [0, 95, 135, 175, 215, 255][Math.floor((code - 16) / part) % 6])})`;
  };
  let style = {};
  const apply = (codes) => {
    while (codes.length) {
      const code = codes.shift();
      const ground = code >= 100 || (code >= 40 && code < 50) ? 'back' : 'front';
      if (code === 0) style = {};
      else if (code === 1) style.bold = true;
      else if (code === 2) style.dim = true;
      else if (code === 7) style.reverse = true;
      else if (code === 22) delete style.bold, delete style.dim;
      else if (code === 27) delete style.reverse;
      else if (code === 38 || code === 48) style[ground] = codes.shift() === 5 ? cube(codes.shift()) : `rgb(${codes.splice(0, 3)})`;
      else if (code % 10 === 9) delete style[ground];
      else if (code >= 30) style[ground] = (code >= 90 ? bright : palette)[code % 10];
    }
  };
  const escaped = (text) => text.replace(/[&<]/g, (letter) => ({ '&': '&amp;', '<': '&lt;' })[letter]);
  const runs = screen.trimEnd().split('\u001b[').map((run, place) => {
    const [, codes, text] = place === 0 ? [null, '', run] : run.match(/^([\d;]*)m([^]*)$/);
    if (place > 0) apply((codes || '0').split(';').map(Number));
    const [front = '#e5ebf1', back = 'transparent'] = style.reverse ? [style.back ?? '#0d1218', style.front ?? '#e5ebf1'] : [style.front, style.back];
    return `<span style="color:${front};background:${back};${style.bold ? 'font-weight:700;' : ''}${style.dim ? 'opacity:.65' : ''}">${escaped(text)}</span>`;
  });
  return `<body style="margin:0;background:#0d1218"><pre style="display:inline-block;margin:0;padding:14px;font:13px/1.35 'DejaVu Sans Mono',monospace">${runs.join('')}</pre>`;
}
