// Simulated nodes, a Prometheus that scrapes them, and its HTTP API.

import { spawn } from 'node:child_process';
import { copyFileSync, mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { until } from '../page/browser.mjs';
import { Demo, freePort } from '../page/podmeter.mjs';

const RULES = fileURLToPath(new URL('../../deploy/rules/podmeter.rules.yaml', import.meta.url));
export const SCRAPE_SECONDS = 15;
const NODES = {
  'gpu-h100-1': ['--profile', '8xh100'],
  'gpu-h100-2': ['--profile', '8xh100', '--faults'],
  'gpu-shared-1': ['--profile', '8xh100-timesliced'],
  'gpu-mig-1': ['--profile', '8xh100-mig'],
  'gpu-a100-1': ['--profile', '8xa100'],
  'gpu-a100-2': ['--profile', '8xa100'],
};

export class Fleet {
  // Keeps its files in `directory`.
  static async start(directory) {
    const fleet = new Fleet();
    try {
      await fleet.run(directory);
      return fleet;
    } catch (error) {
      await fleet.stop();
      throw error;
    }
  }

  async run(directory) {
    this.demos = [];
    for (const [name, options] of Object.entries(NODES)) {
      const demo = new Demo(await freePort(), '--churn', '--seed', `${this.demos.length + 1}`, ...options);
      this.demos.push(demo);
      demo.node = name;
      await demo.start();
    }
    const targets = this.demos.map(({ port, node }) => ({ targets: [`127.0.0.1:${port}`], labels: { node } }));
    mkdirSync(join(directory, 'prometheus'));
    copyFileSync(RULES, join(directory, 'prometheus/podmeter.rules.yaml'));
    // JSON is YAML.
    writeFileSync(join(directory, 'prometheus/prometheus.yml'), JSON.stringify({
      global: { scrape_interval: `${SCRAPE_SECONDS}s`, evaluation_interval: '30s' },
      rule_files: ['podmeter.rules.yaml'],
      scrape_configs: [{ job_name: 'podmeter', honor_labels: true, static_configs: targets }],
    }));
    const port = await freePort();
    this.prometheus = `http://127.0.0.1:${port}`;
    this.server = spawn('prometheus', [
      '--config.file=prometheus.yml', '--storage.tsdb.path=data', `--web.listen-address=127.0.0.1:${port}`, '--log.level=warn',
    ], { cwd: join(directory, 'prometheus'), stdio: 'ignore' });
    this.server.on('error', (error) => { this.failed = error; });
    await until('Prometheus to be ready', async () => {
      if (this.failed) throw this.failed;
      return fetch(`${this.prometheus}/-/ready`).then((answer) => answer.ok, () => false);
    });
  }

  async stop() {
    for (const demo of this.demos) if (demo.child) await demo.stop();
    if (!this.server?.pid || this.server.exitCode !== null) return;
    const ended = new Promise((resolve) => { this.server.on('exit', resolve); });
    this.server.kill();
    await ended;
  }
}

// Series: { metric, values: [[time, value], ...] }.
export async function vector(prometheus, query, time) {
  return (await ask(prometheus, 'query', { query, time })).map(({ metric, value }) => ({ metric, values: [value] }));
}

export function range(prometheus, query, start, end, step) {
  return ask(prometheus, 'query_range', { query, start, end, step });
}

async function ask(prometheus, route, parameters) {
  const answer = await fetch(`${prometheus}/api/v1/${route}`, { method: 'POST', body: new URLSearchParams(parameters) });
  const { status, error, data } = await answer.json();
  if (status !== 'success') throw new Error(`${parameters.query}: ${error}`);
  return data.result;
}
