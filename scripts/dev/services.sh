# shellcheck shell=bash
# `./dev up` and what belongs to it: the services, their status, their end.

# In the order of starting; they are stopped in the opposite one.
SERVICES='kernel output scheduler gateway airlock worker'

# --- starting ----------------------------------------------------------------

# normal_listen ADDR: "8081", ":8081" and "HOST:8081" all become HOST:PORT.
normal_listen() {
  case $1 in
    '' | *[!0-9]*) ;;
    *) echo "127.0.0.1:$1" && return ;;
  esac
  case $1 in
    :*[0-9]) echo "127.0.0.1$1" ;;
    *:*[0-9]) echo "$1" ;;
    *) die "\"$1\" is no address to listen on: say HOST:PORT, for example 127.0.0.1:8081" ;;
  esac
}

# reachable HOST:PORT: how to reach it from here; one listens on "all
# addresses", but nobody can connect to them.
reachable() {
  case $1 in
    0.0.0.0:*) echo "127.0.0.1:${1##*:}" ;;
    '[::]:'*) echo "[::1]:${1##*:}" ;;
    *) echo "$1" ;;
  esac
}

# The service of ours that serves REST now, if any.
rest_service() {
  local name
  for name in airlock gateway; do
    if alive "$name"; then
      echo "$name"
      return 0
    fi
  done
  return 1
}

# choose_listen TOLD: told, else where it listens already, else the default. A
# stranger on the port is found before anything is built or started.
choose_listen() {
  local current=''
  if current=$(rest_service); then
    recall "$current"
    current=$ADDRESS
  fi
  if [ -n "$1" ]; then
    LISTEN=$(normal_listen "$1")
  else
    LISTEN=${current:-127.0.0.1:8080}
  fi
  local at
  at=$(reachable "$LISTEN")
  if [ "$LISTEN" != "$current" ] && listening "$(bare_host "$at")" "${at##*:}"; then
    fail "another program listens on $LISTEN already"
    who_listens "${at##*:}"
    die "end it, or choose another place: ./dev up --listen 127.0.0.1:$((${at##*:} + 1))"
  fi
  AIRLOCK_URL=http://$at
}

bare_host() { echo "${1%:*}" | tr -d '[]'; }

who_listens() {
  if command -v lsof >/dev/null; then
    lsof -nP -iTCP:"$1" -sTCP:LISTEN 2>/dev/null | sed 's/^/    | /' >&2 || true
  elif command -v ss >/dev/null; then
    ss -ltnpH "sport = :$1" 2>/dev/null | sed 's/^/    | /' >&2 || true
  fi
}

# The development keys are random per checkout and live in dev.env only. There are
# two, because nobody approves their own job.
choose_keys() {
  local name value
  for name in AIRLOCK_API_KEY AIRLOCK_APPROVER_KEY; do
    [ -z "${!name:-}" ] || continue
    value=
    if [ -f "$DEV_ENV" ]; then
      value=$(sed -n "s/^$name=//p" "$DEV_ENV" | tr -d "'")
    fi
    printf -v "$name" '%s' "${value:-dev-$(random_word)}"
  done
}

# Plain NAME=value lines, which dotenv readers understand too (quoted only where
# a shell needs it), then one that exports them to the reading shell's children.
write_dev_env() {
  local name value names='AIRLOCK_URL AIRLOCK_API_KEY AIRLOCK_APPROVER_KEY NATS_URL REDIS_URL DATABASE_URL'
  (
    umask 077
    for name in $names; do
      value=${!name}
      case $value in
        *[!A-Za-z0-9_.:/@%+,=-]*) value="'$(printf '%s' "$value" | sed "s/'/'\\\\''/g")'" ;;
      esac
      printf '%s=%s\n' "$name" "$value"
    done >"$DEV_ENV.new"
    printf 'export %s\n' "$names" >>"$DEV_ENV.new"
  )
  mv "$DEV_ENV.new" "$DEV_ENV"
}

# fingerprint COMMAND...: changes when a program of ours was built anew or would
# be started differently.
fingerprint() {
  local word
  {
    for word in "$@"; do
      case $word in "$TARGET"/*) ls -ln "$word" ;; *) echo "$word" ;; esac
    done
    printf '%s\n' "$NATS_URL" "$REDIS_URL" "$DATABASE_URL" "$AIRLOCK_API_KEY" \
      "$AIRLOCK_APPROVER_KEY" "$SAFETY_POLICY_PATH" "${AIRLOCK_GRPC__LISTEN:-}" "${AIRLOCK_KERNEL__URL:-}" \
      "${OUTPUT_POLICY_ENABLED:-}" "${OUTPUT_POLICY_FAIL_MODE:-}" "$OUTPUT_SCANNERS_PATH" "${AIRLOCK_OUTPUT__URL:-}"
  } | cksum | tr ' ' -
}

# start_service NAME ADDRESS COMMAND...: unless the same runs already.
start_service() {
  local name=$1 address=$2 print
  shift 2
  print=$(fingerprint "$address" "$@")
  if recall "$name"; then
    [ "$FINGERPRINT" != "$print" ] || return 0
    note "$name has changed and is started again"
    stop "$name" || exit 1
  fi
  spawn "$name" "$address" "$print" "$@"
}

await_ready() { await 60 "$1" ready_over_http "$(reachable "$2")" || exit 1; }

start_together() {
  local name
  for name in gateway scheduler output kernel; do stop "$name"; done
  start_service airlock "$LISTEN" "$TARGET/debug/airlock" dev --listen "$LISTEN"
  await_ready airlock "$LISTEN"
  note "every service in one process on $LISTEN"
}

# own_port NAME FIRST SERVICE: the port that the running service has, or a free one.
own_port() {
  if alive "$3" && [ -f "$RUN/$1.port" ]; then cat "$RUN/$1.port"; else pick_port "$1" "$2"; fi
}

start_separate() {
  local grpc kernel scheduler saga output judge=''
  stop airlock
  grpc=127.0.0.1:$(own_port kernel-grpc 50151 kernel)
  kernel=127.0.0.1:$(own_port kernel 8182 kernel)
  scheduler=127.0.0.1:$(own_port scheduler 8181 scheduler)
  saga=127.0.0.1:$(own_port saga-manager 8185 saga-manager)
  # The kernel holds no key, so it is given none.
  AIRLOCK_GRPC__LISTEN=$grpc AIRLOCK_HTTP__LISTEN=$kernel \
    start_service kernel "$kernel" env -u AIRLOCK_API_KEY -u AIRLOCK_APPROVER_KEY "$TARGET/debug/airlock-safety-kernel"
  await_ready kernel "$kernel"
  # Off unless it is asked for; then started before whoever asks it.
  if [ "${OUTPUT_POLICY_ENABLED:-}" = true ]; then
    judge=127.0.0.1:$(own_port output-grpc 50152 output)
    output=127.0.0.1:$(own_port output 8183 output)
    AIRLOCK_GRPC__LISTEN=$judge AIRLOCK_HTTP__LISTEN=$output \
      start_service output "$output" env -u AIRLOCK_API_KEY -u AIRLOCK_APPROVER_KEY "$TARGET/debug/airlock-output-policy"
    await_ready output "$output"
    note "output policy on $judge"
  else
    stop output
  fi
  AIRLOCK_KERNEL__URL=http://$grpc AIRLOCK_HTTP__LISTEN=$scheduler AIRLOCK_OUTPUT__URL=http://${judge:-127.0.0.1:50052} \
    start_service scheduler "$scheduler" env -u AIRLOCK_API_KEY -u AIRLOCK_APPROVER_KEY "$TARGET/debug/airlock-scheduler"
  AIRLOCK_HTTP__LISTEN=$saga \
    start_service saga-manager "$saga" env -u AIRLOCK_API_KEY -u AIRLOCK_APPROVER_KEY "$TARGET/debug/airlock-saga-manager"
  # Tasks without a key, as airlock dev takes them: from this machine only.
  case $(bare_host "$LISTEN") in
    127.* | ::1 | localhost) export AIRLOCK_AUTH__ANONYMOUS_TASKS=${AIRLOCK_AUTH__ANONYMOUS_TASKS:-true} ;;
  esac
  AIRLOCK_KERNEL__URL=http://$grpc AIRLOCK_HTTP__LISTEN=$LISTEN \
    start_service gateway "$LISTEN" "$TARGET/debug/airlock-gateway"
  await_ready scheduler "$scheduler"
  await_ready saga-manager "$saga"
  await_ready gateway "$LISTEN"
  note "kernel on $grpc, scheduler on $scheduler, saga manager on $saga, gateway on $LISTEN"
}

# A worker talks to the bus and to Redis, never to the ledger.
start_worker() {
  WORKER_ID=${WORKER_ID:-demo-worker} start_service worker - env -u DATABASE_URL -u AIRLOCK_API_KEY \
    -u AIRLOCK_APPROVER_KEY \
    "$TARGET/debug/examples/demo-worker"
}

# --- up ----------------------------------------------------------------------

up() {
  local detach='' separate='' listen=${AIRLOCK_LISTEN:-} demo=yes server private='' all_args=("$@")
  while [ $# -gt 0 ]; do
    case $1 in
      -d | --detach) detach=yes ;;
      --separate) separate=yes ;;
      --no-demo) demo='' ;;
      --listen=*) listen=${1#*=} ;;
      --listen)
        [ $# -gt 1 ] || die "--listen needs an address"
        listen=$2
        shift
        ;;
      *) die "./dev up knows no \"$1\"; see ./dev help" ;;
    esac
    shift
  done
  heed_interrupts ${all_args[@]+"${all_args[@]}"}
  need_rust
  mkdir -p "$RUN" "$LOGS"
  for server in $SERVERS; do
    is_external "$server" || private="$private $server"
  done
  choose_listen "$listen"
  trap 'end_of_up $?' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  # shellcheck disable=SC2086
  need $private
  build_dev
  lock
  choose_listen "$listen"
  say "starting the servers"
  for server in $SERVERS; do use_server "$server"; done
  choose_keys
  export AIRLOCK_URL AIRLOCK_API_KEY AIRLOCK_APPROVER_KEY SAFETY_KERNEL_INSECURE=true OUTPUT_POLICY_INSECURE=true
  export SAFETY_POLICY_PATH=${SAFETY_POLICY_PATH:-$ROOT/config/safety.yaml}
  export OUTPUT_SCANNERS_PATH=${OUTPUT_SCANNERS_PATH:-$ROOT/config/output_scanners.yaml}
  write_dev_env
  say "starting the services"
  if [ -n "$separate" ]; then start_separate; else start_together; fi
  start_worker
  alive worker || await 1 worker false || exit 1
  unlock
  [ -z "$demo" ] || demo || exit 1
  if [ -n "$detach" ]; then
    STARTED=''
    printf 'ready: %s\n' "$AIRLOCK_URL"
  else
    next_steps
    stay
  fi
}

# A shell starts "command &" with interrupts ignored, and bash cannot undo that
# by itself; then this script starts itself once more with them restored.
heed_interrupts() {
  case $(trap -p INT) in
    *"''"*)
      if [ -z "${AIRLOCK_DEV_AGAIN:-}" ] && env --default-signal=INT true 2>/dev/null; then
        AIRLOCK_DEV_AGAIN=yes exec env --default-signal=INT "$ROOT/dev" up "$@"
      fi
      ;;
  esac
  unset AIRLOCK_DEV_AGAIN
}

build_dev() {
  say "building (the first time takes a few minutes)"
  (cd "$ROOT" && cargo build --locked --workspace --bins --examples) || die "the build failed"
}

# stay: until interrupted. A component that dies is reported, not fatal: to see
# the others cope with it is what some come for.
stay() {
  local watched=$STARTED name remaining
  while :; do
    sleep 1 &
    wait $! || true
    remaining=''
    for name in $watched; do
      if mine "$name"; then
        remaining="$remaining $name"
      else
        warn "$name has ended; ./dev logs $name tells more, ./dev up in another shell starts it again"
      fi
    done
    watched=$remaining
    if ! rest_service >/dev/null; then
      say "nothing serves REST any more"
      exit 1
    fi
  done
}

# end_of_up CODE: whatever this run started goes, newest first; what ran before
# it stays. After --detach, the list is empty.
end_of_up() {
  local name reversed=''
  trap '' INT TERM HUP
  trap - EXIT
  for name in $STARTED; do
    if mine "$name"; then reversed="$name $reversed"; fi
  done
  if [ -n "$reversed" ]; then
    printf '\n' >&2
    say "stopping ${reversed% }"
    [ -n "$LOCKED" ] || lock
    for name in $reversed; do stop_component "$name" || true; done
    settle
  fi
  unlock
  exit "$1"
}

# --- down, status, logs --------------------------------------------------------

stop_component() {
  case " $SERVERS " in *" $1 "*) stop_server "$1" ;; *) stop "$1" ;; esac
}

down() {
  local name order='' code=0 any=''
  lock
  trap unlock EXIT
  for name in $SERVERS $SERVICES; do order="$name $order"; done
  for name in $order; do
    alive "$name" || continue
    any=yes
    note "stopping $name"
    stop_component "$name" || code=1
  done
  settle
  rm -f "$RUN"/*.external
  if [ -z "$any" ]; then say "nothing was running"; elif [ "$code" -eq 0 ]; then say "everything is down"; fi
  unlock
  return "$code"
}

reset() {
  local home=''
  down
  [ ! -d "$STATE/postgres" ] || home=$(cd "$STATE/postgres" && pwd -P)
  rm -rf "$STATE/postgres" "$STATE/redis" "$STATE/nats" ${home:+"$home"} "$RUN" "$DEV_ENV"
  say "the private servers' data is gone"
}

# state_of NAME: after recall
state_of() {
  case $1 in
    postgres | redis | nats) listening 127.0.0.1 "${ADDRESS##*:}" && echo ready || echo starting ;;
    worker) echo running ;;
    *) ready_over_http "$(reachable "$ADDRESS")" && echo ready || echo "not ready" ;;
  esac
}

# rows: component, pid, address, state; separated by tabs. Of the services only
# those that belong to the way they were started in.
rows() {
  local name together=''
  alive kernel || alive scheduler || alive gateway || together=yes
  for name in $SERVERS $SERVICES; do
    case $name in
      output) [ "${OUTPUT_POLICY_ENABLED:-}" = true ] && [ -z "$together" ] || alive output || continue ;;
      kernel | scheduler | gateway) [ -z "$together" ] || continue ;;
      airlock) [ -n "$together" ] || continue ;;
    esac
    if recall "$name"; then
      printf '%s\t%s\t%s\t%s\n' "$name" "$PID" "$ADDRESS" "$(state_of "$name")"
    elif [ -f "$RUN/$name.external" ]; then
      printf '%s\t-\t-\texternal\n' "$name"
    else
      printf '%s\t-\t-\tstopped\n' "$name"
    fi
  done
}

status() {
  case ${1:-} in
    '')
      { printf 'COMPONENT\tPID\tADDRESS\tSTATE\n' && rows; } |
        while IFS=$'\t' read -r name pid address state; do
          printf '%-10s  %-8s  %-21s  %s\n' "$name" "$pid" "$address" "$state"
        done
      ;;
    --json)
      rows | awk -F '\t' '
        function text(value) { return value == "-" ? "null" : "\"" value "\"" }
        function number(value) { sub(/.*:/, "", value); return value == "-" ? "null" : value }
        BEGIN { printf "[" }
        NR > 1 { printf "," }
        { printf "{\"component\":%s,\"pid\":%s,\"address\":%s,\"port\":%s,\"state\":%s}",
            text($1), number($2), text($3), number($3), text($4) }
        END { print "]" }'
      ;;
    *) die "./dev status knows only --json" ;;
  esac
}

log_names() { for file in "$LOGS"/*.log; do basename "$file" .log; done | tr '\n' ' '; }

logs() {
  local follow='' lines=50 name='' files=()
  while [ $# -gt 0 ]; do
    case $1 in
      -f | --follow) follow=-f ;;
      -n)
        [ $# -gt 1 ] || die "-n needs a number of lines"
        lines=$2
        shift
        ;;
      -*) die "./dev logs knows no \"$1\"; see ./dev help" ;;
      *) name=$1 ;;
    esac
    shift
  done
  if [ -n "$name" ]; then
    # In one process, "gateway" and the like are parts of "airlock".
    case $name in kernel | output | scheduler | gateway) alive "$name" || ! alive airlock || name=airlock ;; esac
    [ -f "$LOGS/$name.log" ] || die "there is no log of \"$name\"; there are: $(log_names)"
    files=("$LOGS/$name.log")
  else
    files=("$LOGS"/*.log)
    [ -f "${files[0]}" ] || die "there are no logs yet; ./dev up writes them"
  fi
  # shellcheck disable=SC2086
  exec tail -n "$lines" $follow "${files[@]}"
}
