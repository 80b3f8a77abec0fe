// A running `podmeter demo`, on one port for its whole life, however often it is started.

import { spawn } from 'node:child_process';
import { createServer } from 'node:net';
import { fileURLToPath } from 'node:url';

import { until } from './browser.mjs';

export const BINARY = process.env.PODMETER_BINARY ?? fileURLToPath(new URL('../../target/debug/podmeter', import.meta.url));

export async function freePort() {
  const server = createServer();
  await new Promise((resolve, reject) => { server.once('error', reject).listen(0, '127.0.0.1', resolve); });
  const { port } = server.address();
  await new Promise((resolve) => { server.close(resolve); });
  return port;
}

export class Demo {
  constructor(port, ...options) {
    Object.assign(this, { port, options, url: `http://127.0.0.1:${port}/`, log: '' });
  }

  async start() {
    const child = spawn(BINARY, ['demo', '--listen', `127.0.0.1:${this.port}`, ...this.options], { stdio: ['ignore', 'pipe', 'pipe'] });
    child.stdout.on('data', (data) => { this.log += data; });
    child.stderr.on('data', (data) => { this.log += data; });
    child.on('error', (error) => { this.log += error; });
    this.child = child;
    await until('podmeter to be ready', async () => {
      if (child.exitCode !== null) throw new Error(`podmeter ended: ${this.log}`);
      return fetch(`${this.url}-/ready`).then((answer) => answer.ok, () => false);
    });
    return this;
  }

  signal(name) {
    this.child.kill(name);
  }

  // The exit code.
  async stop(signal = 'SIGTERM') {
    const { child } = this;
    if (child.exitCode !== null || child.signalCode !== null) return child.exitCode;
    const ended = new Promise((resolve) => { child.on('exit', (code) => resolve(code)); });
    child.kill('SIGCONT');
    child.kill(signal);
    return ended;
  }
}
