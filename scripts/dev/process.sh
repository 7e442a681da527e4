# shellcheck shell=bash
# Processes that outlive this script, written down in .airlock/run.
#
# One file per component holds: pid, start time, address, fingerprint. The
# start time tells our process from a stranger that was given the same pid; the
# fingerprint tells whether what runs is still what we would start now. Each
# component is the leader of its own process group, so that a Ctrl-C on the
# terminal reaches this script first and the order of stopping is ours.

# What this very run of the script has started, newest last: the names, and
# NAME=PID for each, since another ./dev may have put a new process in its place.
STARTED=''
STARTED_PIDS=''

# started_at PID: when the process began, or failure when there is none. A
# zombie counts as none: in a container nobody may ever collect it.
started_at() {
  local stat
  if [ -r /proc/self/stat ]; then
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    # The name in parentheses may itself hold spaces and parentheses.
    # shellcheck disable=SC2086
    set -- ${stat##*) }
    [ "$1" != Z ] || return 1
    printf '%s\n' "${20}"
  else
    stat=$(ps -o stat=,lstart= -p "$1" 2>/dev/null) || return 1
    case $stat in '' | Z*) return 1 ;; esac
    # shellcheck disable=SC2086
    set -- $stat
    shift
    (IFS=_ && printf '%s\n' "$*")
  fi
}

# recall NAME: sets PID, START, ADDRESS and FINGERPRINT of a component that is
# alive; forgets one that is not.
recall() {
  PID='' START='' ADDRESS='' FINGERPRINT=''
  [ -f "$RUN/$1" ] || return 1
  read -r PID START ADDRESS FINGERPRINT <"$RUN/$1" || true
  if [ -n "$PID" ] && [ "$(started_at "$PID")" = "$START" ]; then
    return 0
  fi
  rm -f "$RUN/$1"
  PID=''
  return 1
}

alive() { (recall "$1"); }

# remember NAME PID ADDRESS FINGERPRINT
remember() {
  local start
  start=$(started_at "$2") || return 1
  printf '%s %s %s %s\n' "$2" "$start" "$3" "$4" >"$RUN/.$1.new"
  mv "$RUN/.$1.new" "$RUN/$1"
  STARTED_PIDS="$STARTED_PIDS $1=$2 "
}

# mine NAME: is it alive, and was it started by this very run?
mine() {
  recall "$1" || return 1
  case $STARTED_PIDS in *" $1=$PID "*) return 0 ;; *) return 1 ;; esac
}

# spawn NAME ADDRESS FINGERPRINT COMMAND...: start in the background, in its
# own process group, with nothing of ours but the environment. FOLDER says
# where, if not at the top of the checkout.
spawn() {
  local name=$1 address=$2 fingerprint=$3 log=$LOGS/$1.log pid
  shift 3
  if [ -f "$log" ] && [ "$(wc -c <"$log")" -gt 10000000 ]; then
    mv "$log" "$log.1"
  fi
  printf '\n# %s started by ./dev\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" >>"$log"
  # Job control gives the child its own process group; on Linux and macOS
  # alike, which setsid would not.
  pid=$(
    set -m
    cd "${FOLDER:-$ROOT}" || exit 1
    nohup "$@" </dev/null >>"$log" 2>&1 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- &
    echo $!
  )
  STARTED="$STARTED $name"
  # A process may be gone before we can write it down; whoever waits for it
  # to become ready will notice and show its log.
  remember "$name" "$pid" "$address" "$fingerprint" || true
}

# await SECONDS NAME CHECK...: until the check succeeds; gives up at once when
# the component has died.
await() {
  local bound=$(($1 * 10)) name=$2 tries=0
  shift 2
  until "$@"; do
    tries=$((tries + 1))
    if ! alive "$name"; then
      fail "$name ended while starting"
      show_tail "$LOGS/$name.log" 25
      return 1
    elif [ "$tries" -ge "$bound" ]; then
      fail "$name was not ready after $((bound / 10)) s"
      show_tail "$LOGS/$name.log" 25
      return 1
    fi
    sleep 0.1
  done
}

# stop NAME [SIGNAL]: ask, wait, and only then insist. Services drain for up to
# 8 s by themselves, so the wait is a little longer.
stop() {
  local tries=0
  recall "$1" || return 0
  kill "-${2:-TERM}" "$PID" 2>/dev/null || true
  while [ "$(started_at "$PID")" = "$START" ]; do
    tries=$((tries + 1))
    if [ "$tries" -eq 120 ]; then
      warn "$1 (pid $PID) did not end when asked; killing it"
      kill -KILL "-$PID" 2>/dev/null || kill -KILL "$PID" 2>/dev/null || true
    elif [ "$tries" -gt 170 ]; then
      fail "$1 (pid $PID) cannot be ended"
      return 1
    fi
    sleep 0.1
  done
  rm -f "$RUN/$1"
  STOPPED="$STOPPED $PID"
}

# settle: until the system has also collected what is dead, so that "no process
# is left" is true to the letter. Bounded, because in a container there may be
# nobody to collect it.
STOPPED=''
settle() {
  local pid tries=0
  for pid in $STOPPED; do
    while kill -0 "$pid" 2>/dev/null && [ "$tries" -lt 30 ]; do
      tries=$((tries + 1))
      sleep 0.1
    done
  done
}

# Only one ./dev at a time may start or stop things. A folder is the lock,
# because making one is atomic everywhere; a dead holder's lock is taken over.
LOCKED=''
lock() {
  local holder told='' tries=0
  mkdir -p "$RUN" "$LOGS"
  until mkdir "$RUN/lock" 2>/dev/null; do
    holder=$(cat "$RUN/lock/holder" 2>/dev/null) || holder=''
    if [ -z "$holder" ] && [ "$tries" -lt 10 ]; then
      : # It was made this instant and its holder has not signed yet.
    elif [ -z "$holder" ] || [ "$(started_at "${holder%% *}")" != "${holder#* }" ]; then
      rm -rf "$RUN/lock"
      continue
    elif [ -z "$told" ]; then
      say "waiting for another ./dev (pid ${holder%% *})"
      told=yes
    fi
    tries=$((tries + 1))
    sleep 0.2
  done
  printf '%s %s\n' "$$" "$(started_at $$)" >"$RUN/lock/holder"
  LOCKED=yes
}

unlock() {
  [ -z "$LOCKED" ] || rm -rf "$RUN/lock"
  LOCKED=''
}

# listening HOST PORT: does anyone answer there?
listening() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }

# pick_port NAME DEFAULT: the port used last time, else the default, else the
# next one that is free. The choice is kept, so that URLs stay the same.
pick_port() {
  local port last
  last=$(cat "$RUN/$1.port" 2>/dev/null) || last=''
  for port in $last $(seq "$2" $(($2 + 200))); do
    if ! listening 127.0.0.1 "$port" && ! taken_by_sibling "$1" "$port"; then
      printf '%s\n' "$port" | tee "$RUN/$1.port"
      return 0
    fi
  done
  return 1
}

taken_by_sibling() {
  local file
  for file in "$RUN"/*.port; do
    if [ -f "$file" ] && [ "$file" != "$RUN/$1.port" ] && [ "$(cat "$file")" = "$2" ]; then
      return 0
    fi
  done
  return 1
}

# ready_over_http HOST:PORT: does GET /health/ready answer 200? Without curl,
# which may not be there.
ready_over_http() (
  host=${1%:*} port=${1##*:} line=''
  host=${host#[}
  host=${host%]}
  exec 2>/dev/null
  exec 3<>"/dev/tcp/$host/$port" || exit 1
  printf 'GET /health/ready HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$1" >&3
  IFS= read -r -t 3 line <&3
  case $line in "HTTP/1.1 200"*) exit 0 ;; *) exit 1 ;; esac
)
