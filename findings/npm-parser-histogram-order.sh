#!/usr/bin/env bash
# parse-prometheus-text-format 1.1.1, from npm.
#
# Behaviour: a histogram whose `_sum` and `_count` lines come before its first bucket ends the parse with an
# exception; with the buckets first the same lines are read.
# Input: one histogram with two buckets, a valid page of text format 0.0.4, in both orders. The format sets no order of the
# lines of a histogram.
# Seen: sum first: TypeError; buckets first: one family with one histogram of two buckets.
# Expected: the same result for both orders.
# Concerns: exporters and who reads them with this parser: one family in another order loses all others of the page.
#
# Needs npm and node. Exits 1 if this has changed.
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
npm install --silent --no-audit --no-fund parse-prometheus-text-format@1.1.1
cat >read.cjs <<'END'
const parsed = require("parse-prometheus-text-format");
const parse = parsed.default ?? parsed;
const sum = ["wait_seconds_sum 3", "wait_seconds_count 2"];
const buckets = ['wait_seconds_bucket{le="1"} 1', 'wait_seconds_bucket{le="+Inf"} 2'];
for (const [order, lines] of [["sum first", [...sum, ...buckets]], ["buckets first", [...buckets, ...sum]]]) {
    const page = ["# HELP wait_seconds Time of waits.", "# TYPE wait_seconds histogram", ...lines, ""].join("\n");
    try {
        const families = parse(page);
        const count = Object.keys(families[0].metrics[0].buckets).length;
        console.log(`${order}: ${families.length} family, ${count} buckets`);
    } catch (error) {
        console.log(`${order}: ${error.constructor.name}`);
    }
}
END
seen=$(node read.cjs)
printf '%s\n' "$seen"
[ "$seen" = 'sum first: TypeError
buckets first: 1 family, 2 buckets' ] || { echo 'changed'; exit 1; }
