# shellcheck shell=bash
# Private instances of Postgres, Redis and NATS, with their data in .airlock/.
#
# They listen on 127.0.0.1 only, on ports of their own choice, and sync to disk
# as in production: what is tried here should behave like what is deployed.

SERVERS='postgres redis nats'

# url_variable SERVER
url_variable() {
  case $1 in
    postgres) echo DATABASE_URL ;;
    redis) echo REDIS_URL ;;
    nats) echo NATS_URL ;;
  esac
}

# is_external SERVER: does the environment name a server of somebody else? A
# shell that has read our own dev.env names ours, which is not external.
is_external() {
  local variable url
  variable=$(url_variable "$1")
  url=${!variable:-}
  [ -n "$url" ] && [ "$url" != "$(cat "$RUN/$1.url" 2>/dev/null)" ]
}

# use_server SERVER: leaves its URL in the environment, starting it if it is
# ours and does not run.
use_server() {
  local variable
  variable=$(url_variable "$1")
  if is_external "$1"; then
    stop_server "$1"
    check_external "$1" "${!variable}"
    : >"$RUN/$1.external"
  else
    rm -f "$RUN/$1.external"
    "start_$1" || exit 1
    export "$variable=$(cat "$RUN/$1.url")"
  fi
}

# host_and_port URL DEFAULT-PORT: of the first server that the URL names.
host_and_port() {
  local rest=${1#*://}
  rest=${rest%%[/?,]*}
  rest=${rest##*@}
  case $rest in
    *]) echo "${rest#[} $2" | tr -d ']' ;;
    *:*) echo "${rest%:*} ${rest##*:}" ;;
    *) echo "$rest $2" ;;
  esac
}

check_external() {
  local where default
  case $1 in postgres) default=5432 ;; redis) default=6379 ;; nats) default=4222 ;; esac
  where=$(host_and_port "$2" "$default")
  note "using the $1 at ${where% *}:${where#* }, as $(url_variable "$1") says"
  # An empty host means a Unix socket, which the service itself will try.
  [ -n "${where% *}" ] || return 0
  # shellcheck disable=SC2086
  listening $where || die "nobody answers at ${where% *}:${where#* }, where $(url_variable "$1") points"
}

# keep_url SERVER URL: kept apart from dev.env, to tell ours from external ones.
# Postgres' holds a password.
keep_url() { (umask 077 && printf '%s\n' "$2" >"$RUN/$1.url"); }

stop_server() {
  # SIGINT is Postgres' fast shutdown; on SIGTERM it would wait for clients.
  case $1 in
    postgres) stop postgres INT ;;
    *) stop "$1" ;;
  esac
}

# --- Redis -------------------------------------------------------------------

redis_answers() (
  exec 2>/dev/null
  exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1
  printf 'PING\r\n' >&3
  IFS= read -r -t 3 line <&3
  [ "${line%$'\r'}" = +PONG ]
)

start_redis() {
  local port
  if recall redis; then return 0; fi
  port=$(pick_port redis 6380)
  mkdir -p "$STATE/redis"
  spawn redis "127.0.0.1:$port" - "$(redis_program)" --bind 127.0.0.1 --port "$port" \
    --dir "$STATE/redis" --appendonly yes --save '' --daemonize no
  await 20 redis redis_answers "$port" || return 1
  keep_url redis "redis://127.0.0.1:$port"
  note "redis on port $port"
}

# --- NATS --------------------------------------------------------------------

nats_answers() (
  exec 2>/dev/null
  exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1
  IFS= read -r -t 3 line <&3
  case $line in "INFO {"*) exit 0 ;; *) exit 1 ;; esac
)

start_nats() {
  local port
  if recall nats; then return 0; fi
  port=$(pick_port nats 4223)
  mkdir -p "$STATE/nats"
  spawn nats "127.0.0.1:$port" - "$(nats_program)" --addr 127.0.0.1 --port "$port" \
    --jetstream --store_dir "$STATE/nats"
  await 30 nats nats_answers "$port" || return 1
  keep_url nats "nats://127.0.0.1:$port"
  note "nats on port $port"
}

# --- Postgres ----------------------------------------------------------------

# Postgres refuses to run as root, so root lends it to the user that the
# package made for it, or to nobody. Setpriv is preferred, because it leaves no
# process of its own in between.
AS_POSTGRES=()
POSTGRES_USER=''
if [ "$(id -u)" -eq 0 ]; then
  choose_postgres_user() {
    [ -z "$POSTGRES_USER" ] || return 0
    POSTGRES_USER=nobody
    if id postgres >/dev/null 2>&1; then POSTGRES_USER=postgres; fi
    if command -v setpriv >/dev/null; then
      AS_POSTGRES=(setpriv "--reuid=$(id -u "$POSTGRES_USER")"
        "--regid=$(id -g "$POSTGRES_USER")" --clear-groups --)
    elif command -v runuser >/dev/null; then
      AS_POSTGRES=(runuser -u "$POSTGRES_USER" --)
    else
      # shellcheck disable=SC2016
      AS_POSTGRES=(su -m "$POSTGRES_USER" -c 'exec "$0" "$@"' --)
    fi
  }
else
  choose_postgres_user() { :; }
fi

# From /, because the user may not be allowed to be where we are.
as_postgres() { (cd / && ${AS_POSTGRES[@]+"${AS_POSTGRES[@]}"} "$@"); }

# postgres_home: a folder that Postgres can reach. Another user cannot look
# below a private home directory, so root may have to put the data elsewhere;
# .airlock/postgres is then a link to it.
postgres_home() {
  local home=$STATE/postgres base sum
  if [ -d "$home" ]; then
    (cd "$home" && pwd -P)
    return
  fi
  if [ -n "$POSTGRES_USER" ] && ! as_postgres test -x "$STATE"; then
    sum=$(printf '%s' "$ROOT" | cksum)
    for base in "${TMPDIR:-/tmp}" /tmp /var/tmp; do
      if as_postgres test -x "$base"; then break; fi
    done
    ln -sfn "$base/airlock-${sum%% *}" "$home"
    home=$base/airlock-${sum%% *}
  fi
  # What stands there already is ours only if it belongs to that user and is no
  # link: /tmp belongs to everyone.
  if [ -n "$POSTGRES_USER" ] && [ ! -L "$home" ] && as_postgres test -O "$home"; then
    printf '%s\n' "$home"
    return
  fi
  mkdir -m 700 "$home" || return 1
  [ -z "$POSTGRES_USER" ] || chown "$POSTGRES_USER" "$home"
  printf '%s\n' "$home"
}

random_word() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }

# init_postgres HOME FOLDER: the cluster gets its name last, so that a half-made
# one is never mistaken for a whole one. The password keeps other users of the
# machine out, because over TCP anyone local can knock.
init_postgres() {
  local home=$1 folder=$2
  # shellcheck disable=SC2016
  local keep='umask 077; cat >"$0"'
  say "creating a private Postgres cluster"
  {
    as_postgres rm -rf "$home/new" &&
      random_word | as_postgres sh -c "$keep" "$home/password" &&
      as_postgres "$folder/initdb" --pgdata "$home/new" --username airlock --encoding UTF8 \
        --locale C --auth scram-sha-256 --pwfile "$home/password" &&
      echo 'CREATE DATABASE airlock' | as_postgres "$folder/postgres" --single -D "$home/new" postgres &&
      as_postgres mv "$home/new" "$home/data"
  } >>"$LOGS/postgres.log" 2>&1 && return 0
  fail "the cluster could not be created"
  show_tail "$LOGS/postgres.log" 20
  return 1
}

# postgres_answers HOME PORT: the postmaster itself says so, in the eighth line
# of its pid file; the fourth is its port.
postgres_answers() {
  listening 127.0.0.1 "$2" &&
    as_postgres sed -n '4p;8p' "$1/data/postmaster.pid" 2>/dev/null | tr -d ' \n' | grep -qx "$2ready"
}

# bury_postmaster HOME: a postmaster that was killed may stay as a zombie for a
# while, for ever in a container that nobody tends, and a new one takes it for
# alive. Its pid file is removed only when no process works in the data folder.
bury_postmaster() {
  local pid tries=0 folder
  pid=$(as_postgres head -n 1 "$1/data/postmaster.pid" 2>/dev/null) || return 0
  while kill -0 "$pid" 2>/dev/null && ! started_at "$pid" >/dev/null; do
    tries=$((tries + 1))
    if [ "$tries" -gt 50 ]; then
      for folder in /proc/[0-9]*/cwd; do
        [ "$(readlink "$folder" 2>/dev/null)" != "$1/data" ] || return 0
      done
      as_postgres rm -f "$1/data/postmaster.pid"
      return 0
    fi
    sleep 0.1
  done
}

start_postgres() {
  local port home folder made
  if recall postgres; then return 0; fi
  choose_postgres_user
  folder=$(postgres_folder)
  home=$(postgres_home) || return 1
  as_postgres test -d "$home/data" || init_postgres "$home" "$folder" || return 1
  made=$(as_postgres cat "$home/data/PG_VERSION")
  case "$("$folder/postgres" --version) " in
    *" $made."* | *" $made "*) ;;
    *) die "the data in .airlock/postgres was made by PostgreSQL $made, but $("$folder/postgres" --version) is installed; ./dev reset starts afresh" ;;
  esac
  bury_postmaster "$home"
  port=$(pick_port postgres 5433)
  FOLDER=/ spawn postgres "127.0.0.1:$port" - ${AS_POSTGRES[@]+"${AS_POSTGRES[@]}"} \
    "$folder/postgres" -D "$home/data" -p "$port" -c listen_addresses=127.0.0.1 \
    -c unix_socket_directories= -c max_connections=200
  await 60 postgres postgres_answers "$home" "$port" || return 1
  # A helper may stand in between, but the postmaster is who must be asked to end.
  remember postgres "$(as_postgres head -n 1 "$home/data/postmaster.pid")" "127.0.0.1:$port" - || return 1
  keep_url postgres "postgres://airlock:$(as_postgres cat "$home/password")@127.0.0.1:$port/airlock"
  note "postgres on port $port"
}
