#!/bin/sh
# Custom plugin of node-problem-detector: the condition of the node's GPUs, from the file that podmeter writes
# (conditionFile). Exit code 0: healthy; 1: unhealthy; 2: unknown, also when the file is missing, old or damaged. The same
# as `podmeter health -o npd --file FILE`, for images without podmeter.
file=${1:-/run/podmeter/health.json}
unknown() {
    printf '%s\n' "$1"
    exit 2
}
# Once, since podmeter replaces it at any time.
content=$(cat "$file" 2>/dev/null) || unknown "$file cannot be read: podmeter does not run, or has no conditionFile"
value() { printf '%s\n' "$content" | sed -n "s/^  \"$1\": \"\{0,1\}\([^\"]*\)\"\{0,1\},\$/\1/p" | head -n 1; }
status=$(value status) written=$(value written) until=$(value until) message=$(value message)
for number in "$written" "$until"; do
    case $number in
    '' | *[!0-9]*) unknown "$file is not a condition of podmeter's" ;;
    esac
done
now=$(date +%s)
[ "$now" -ge $((written - 5)) ] || unknown "$file was written in the future: the clock was set back"
[ "$now" -le "$until" ] || unknown "$file was last written $((now - written)) s ago: podmeter does not run, or cannot write it"
case $status in
healthy) code=0 ;;
unhealthy) code=1 ;;
unknown) code=2 ;;
*) unknown "$file is not a condition of podmeter's" ;;
esac
printf '%s\n' "$message"
exit "$code"
