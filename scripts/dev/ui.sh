# shellcheck shell=bash
# What the user sees. Progress goes to standard error, so that standard output
# carries only results; colours only when a person is looking.

if [ -t 2 ] && [ -z "${NO_COLOR:-}" ]; then
  BOLD=$'\033[1m' DIM=$'\033[2m' RED=$'\033[31m' GREEN=$'\033[32m' YELLOW=$'\033[33m' PLAIN=$'\033[0m'
else
  BOLD='' DIM='' RED='' GREEN='' YELLOW='' PLAIN=''
fi

say() { printf '%s==>%s %s\n' "$GREEN$BOLD" "$PLAIN" "$*" >&2; }
note() { printf '    %s%s%s\n' "$DIM" "$*" "$PLAIN" >&2; }
warn() { printf '%swarning:%s %s\n' "$YELLOW$BOLD" "$PLAIN" "$*" >&2; }
fail() { printf '%serror:%s %s\n' "$RED$BOLD" "$PLAIN" "$*" >&2; }
die() {
  fail "$*"
  exit 1
}

# show_tail FILE LINES: the end of a log, indented, after something went wrong.
show_tail() {
  [ -s "$1" ] || return 0
  note "the end of ${1#"$ROOT"/}:"
  tail -n "$2" "$1" | sed 's/^/    | /' >&2
}

# quietly LABEL COMMAND...: run with its output in the install log, show that
# time passes, and show the end of the output when it fails.
quietly() {
  local label=$1 log=$LOGS/install.log pid started=$SECONDS code=0
  shift
  mkdir -p "$LOGS"
  printf '\n# %s\n' "$*" >>"$log"
  say "$label"
  "$@" >>"$log" 2>&1 </dev/null &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.2
    if [ -t 2 ]; then
      printf '\r    %s%d s%s ' "$DIM" "$((SECONDS - started))" "$PLAIN" >&2
    elif [ $(((SECONDS - started) % 15)) -eq 14 ]; then
      note "still at it after $((SECONDS - started)) s"
      sleep 1
    fi
  done
  [ ! -t 2 ] || printf '\r        \r' >&2
  wait "$pid" || code=$?
  [ "$code" -eq 0 ] || show_tail "$log" 20
  return "$code"
}
