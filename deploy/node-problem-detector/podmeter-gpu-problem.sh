#!/bin/sh
# Custom plugin of node-problem-detector: the condition of the node's GPUs, from the file that podmeter writes
# (conditionFile). Exit code 0: healthy; 1: unhealthy; 2: unknown, also when the file is missing, old or damaged. The same
# exit code as that of `podmeter health -o npd --file FILE`, for images without podmeter. It starts one process, since
# node-problem-detector's manifest allows a hundredth of a CPU.
file=${1:-/run/podmeter/health.json}
unknown() {
    printf '%s\n' "$1"
    exit 2
}
[ -f "$file" ] && [ -r "$file" ] || unknown "$file cannot be read: podmeter does not run, or has no conditionFile"
schema='' status='' written='' until='' message='' braces='' last=''
# podmeter writes a field per line, and replaces the file: this reads one version of it.
while IFS= read -r line || [ -n "$line" ]; do
    last=$line
    value=${line#*: } value=${value%,} value=${value#\"} value=${value%\"}
    case $line in
    '{' | '}') braces=$braces$line ;;
    '  "schema": '*,) schema=$value ;;
    '  "status": '*,) status=$value ;;
    '  "written": '*,) written=$value ;;
    '  "until": '*,) until=$value ;;
    '  "message": '*,) message=$value ;;
    esac
done <"$file"
case $schema,$braces,$last,$message in
'podmeter.condition/v1,{},},'?*) ;;
*) unknown "$file is not a condition of podmeter's" ;;
esac
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
