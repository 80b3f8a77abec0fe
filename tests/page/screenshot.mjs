// node tests/page/screenshot.mjs FILE [dark|light] [WIDTH] [HEIGHT] [SECONDS] [demo options]: the page of a demo that has run for so long.

import { writeFileSync } from 'node:fs';

import { Browser } from './browser.mjs';
import { Demo, freePort } from './podmeter.mjs';

const [file, scheme = 'dark', width = '1280', height = '1000', seconds = '70', ...options] = process.argv.slice(2);
const demo = await new Demo(await freePort(), ...(options.length ? options : ['--faults', '--churn'])).start();
const browser = await Browser.start();
try {
  await new Promise((resolve) => { setTimeout(resolve, Number(seconds) * 1000); });
  const page = await browser.open(demo.url, { dark: scheme === 'dark', width: Number(width), height: Number(height) });
  await page.until('the page to be live', `document.getElementById('status').textContent === 'Live'`);
  writeFileSync(file, await page.screenshot());
} finally {
  await browser.stop();
  await demo.stop();
}
