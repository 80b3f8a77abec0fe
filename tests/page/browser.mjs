// A headless Chromium, driven over a pipe by the DevTools protocol: no library, no port.

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const PATIENCE = 30_000;

export class Browser {
  static async start() {
    const profile = mkdtempSync(join(tmpdir(), 'podmeter-browser-'));
    const flags = [
      '--headless=new', '--remote-debugging-pipe', `--user-data-dir=${profile}`, '--no-first-run', '--disable-gpu',
      '--disable-background-networking', '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage',
      '--hide-scrollbars', '--force-device-scale-factor=1', '--lang=en-US',
      // The sandbox needs rights that a container's root rarely has; it opens nothing but our own page.
      '--no-sandbox', 'about:blank',
    ];
    const program = process.env.CHROMIUM ?? 'chromium';
    // A group of its own, so that all of its processes end with it.
    const child = spawn(program, flags, { stdio: ['ignore', 'ignore', 'pipe', 'pipe', 'pipe'], detached: true });
    const browser = new Browser(child, profile);
    await browser.call('Browser.getVersion');
    return browser;
  }

  constructor(child, profile) {
    Object.assign(this, { child, profile, last: 0, waiting: new Map(), listeners: new Set(), rest: '', output: '' });
    child.stderr.on('data', (data) => { this.output = (this.output + data).slice(-4000); });
    child.stdio[4].on('data', (data) => this.read(data));
    child.on('error', (error) => this.fail(error));
    child.on('exit', (code) => this.fail(new Error(`chromium ended (${code}): ${this.output}`)));
  }

  read(data) {
    const messages = (this.rest + data).split('\0');
    this.rest = messages.pop();
    for (const text of messages) {
      const message = JSON.parse(text);
      const waiting = this.waiting.get(message.id);
      if (waiting) {
        this.waiting.delete(message.id);
        if (message.error) waiting.reject(new Error(`${waiting.method}: ${message.error.message}`));
        else waiting.resolve(message.result);
      } else {
        for (const listener of this.listeners) listener(message);
      }
    }
  }

  fail(error) {
    this.ended = error;
    for (const { reject } of this.waiting.values()) reject(error);
    this.waiting.clear();
  }

  call(method, params = {}, sessionId = undefined) {
    if (this.ended) return Promise.reject(this.ended);
    this.last += 1;
    const id = this.last;
    return within(PATIENCE, method, new Promise((resolve, reject) => {
      this.waiting.set(id, { method, resolve, reject });
      this.child.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    }));
  }

  // `javascript`, `dark`, `width`, `height`: how it is displayed.
  async open(url, { javascript = true, dark = false, width = 1280, height = 900 } = {}) {
    const { browserContextId } = await this.call('Target.createBrowserContext');
    const { targetId } = await this.call('Target.createTarget', { url: 'about:blank', browserContextId });
    const { sessionId } = await this.call('Target.attachToTarget', { targetId, flatten: true });
    const page = new Page(this, sessionId, browserContextId);
    for (const domain of ['Page', 'Runtime', 'Network', 'Log']) await page.call(`${domain}.enable`);
    await page.call('Emulation.setScriptExecutionDisabled', { value: !javascript });
    await page.look({ dark, width, height });
    await page.go(url);
    return page;
  }

  async stop() {
    this.child.removeAllListeners('exit');
    const ended = new Promise((resolve) => { this.child.on('exit', resolve); });
    try { process.kill(-this.child.pid, 'SIGKILL'); } catch { /* it is gone */ }
    await ended;
    rmSync(this.profile, { recursive: true, force: true, maxRetries: 10 });
  }
}

class Page {
  constructor(browser, sessionId, context) {
    Object.assign(this, { browser, sessionId, context, requests: [], problems: [], loads: 0 });
    browser.listeners.add((message) => message.sessionId === sessionId && this.handle(message));
  }

  handle({ method, params }) {
    if (method === 'Network.requestWillBeSent') this.requests.push(params.request.url);
    if (method === 'Page.loadEventFired') this.loads += 1;
    if (method === 'Runtime.exceptionThrown') this.problems.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
    if (method === 'Runtime.consoleAPICalled' && params.type !== 'log') this.problems.push(JSON.stringify(params.args));
    if (method === 'Log.entryAdded' && params.entry.level === 'error') this.problems.push(`${params.entry.text} ${params.entry.url ?? ''}`);
  }

  call(method, params) {
    return this.browser.call(method, params, this.sessionId);
  }

  async look({ dark = false, width = 1280, height = 900 }) {
    await this.call('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: 1, mobile: width < 600 });
    const features = [{ name: 'prefers-color-scheme', value: dark ? 'dark' : 'light' }, { name: 'prefers-reduced-motion', value: 'reduce' }];
    await this.call('Emulation.setEmulatedMedia', { features });
  }

  async go(url) {
    const loads = this.loads;
    const { errorText } = await this.call('Page.navigate', { url });
    if (errorText) throw new Error(`${url}: ${errorText}`);
    if (url.includes('#') && loads > 0) return;
    await until(`${url} to load`, () => this.loads > loads);
  }

  // The value of an expression, awaited.
  async ask(expression) {
    const answer = await this.call('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true, userGesture: true });
    if (answer.exceptionDetails) throw new Error(`${expression}: ${answer.exceptionDetails.exception?.description}`);
    return answer.result.value;
  }

  text(selector) {
    return this.ask(`document.querySelector(${JSON.stringify(selector)})?.innerText ?? ''`);
  }

  async until(what, expression) {
    return until(what, () => this.ask(expression));
  }

  async press(key) {
    const codes = { Tab: 9, Enter: 13, Escape: 27 };
    const plain = key.length === 1 ? { text: key } : key === 'Enter' ? { text: '\r' } : {};
    const named = { key, code: key.length === 1 ? undefined : key, windowsVirtualKeyCode: codes[key] ?? key.toUpperCase().charCodeAt(0) };
    await this.call('Input.dispatchKeyEvent', { type: 'keyDown', ...named, ...plain });
    await this.call('Input.dispatchKeyEvent', { type: 'keyUp', ...named });
  }

  async type(text) {
    for (const letter of text) await this.press(letter);
  }

  async screenshot() {
    const { data } = await this.call('Page.captureScreenshot', { format: 'png' });
    return Buffer.from(data, 'base64');
  }

  close() {
    return this.browser.call('Target.disposeBrowserContext', { browserContextId: this.context });
  }
}

export async function until(what, condition) {
  const deadline = Date.now() + PATIENCE;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (Date.now() > deadline) throw new Error(`waited in vain for ${what}`);
    await new Promise((resolve) => { setTimeout(resolve, 50); });
  }
}

function within(milliseconds, what, promise) {
  let timer;
  const late = new Promise((_, reject) => { timer = setTimeout(() => reject(new Error(`${what}: no answer`)), milliseconds); });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}
