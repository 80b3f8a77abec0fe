// node tests/page/pictures.mjs [DIRECTORY]: draws the pictures of the documentation from running demos. Needs chromium.

import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { Browser } from './browser.mjs';
import { Demo, freePort } from './podmeter.mjs';

const folder = process.argv[2] ?? fileURLToPath(new URL('../../docs/pictures/', import.meta.url));
// Long enough for the charts of five minutes.
const SECONDS = Number(process.env.SECONDS ?? 330);
// In the pictures of faults, GPU 2 is unhealthy: it happens 10 s after each start of the simulated day of 150 s.
const FAULT = 150;

const wait = (seconds) => new Promise((resolve) => { setTimeout(resolve, seconds * 1000); });

mkdirSync(folder, { recursive: true });
const browser = await Browser.start();
const start = async (...options) => new Demo(await freePort(), ...options).start();
const [faults, mig] = await Promise.all([start('--faults', '--churn'), start('--profile', '8xh100-mig-1g', '--churn')]);
try {
  await wait(SECONDS - SECONDS % FAULT + 14);
  await Promise.all([
    draw('page-light', faults, {}),
    draw('page-dark', faults, { dark: true }),
    draw('page-phone', faults, { width: 390, height: 844 }),
    draw('page-mig', mig, {}),
    draw('page-filtered', faults, {}, '?filter=namespace:research'),
  ]);
} finally {
  await browser.stop();
  await Promise.all([faults.stop(), mig.stop()]);
}

async function draw(name, demo, look, query = '') {
  const page = await browser.open(demo.url + query, { width: 1440, height: 900, ...look });
  await page.until('the page to be live', `document.getElementById('status').textContent === 'Live'`);
  writeFileSync(join(folder, `${name}.png`), await page.screenshot());
}
