#!/usr/bin/env bash
folder=${BASH_SOURCE%/*}
# answer FIELD
answer() {
    while IFS='=' read -r name text; do
        if [ "$name" = "$1" ]; then printf '%s' "$text"; fi
    done <"$folder/answers"
}
case $1 in
-L)
    printf 'GPU 0: %s (UUID: %s)\n' "$(answer name)" "$(answer uuid)"
    exit
    ;;
--query-*=*) IFS=, read -ra fields <<<"${1#*=}" ;;
*) echo "unexpected: $*" >&2 && exit 1 ;;
esac
[ "$2" = --format=csv,noheader,nounits ] || exit 1
row=''
for field in "${fields[@]}"; do
    value=$(answer "$field")
    if [ -z "$value" ]; then
        printf 'Field "%s" is not a valid field to query.\n' "$field"
        exit 2
    fi
    row+="${row:+, }$value"
done
printf '%s\n' "$row"
