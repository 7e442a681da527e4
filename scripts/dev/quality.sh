# shellcheck shell=bash
# Tests, checks and the benchmark.

# The one list of what the tests need; the kinds are explained there.
TEST_NEEDS=$ROOT/scripts/dev/test-needs

# Whatever a shell has read from dev.env must not reach the tests: they run on
# servers and keys of their own.
forget_dev_env() {
  local name
  for name in AIRLOCK_URL AIRLOCK_API_KEY AIRLOCK_APPROVER_KEY AIRLOCK_LISTEN NATS_URL REDIS_URL DATABASE_URL SAFETY_POLICY_PATH; do
    unset "$name"
  done
}

# prepare SERVER...: the toolchain, the servers, and an environment of our own.
prepare() {
  need_rust
  mkdir -p "$RUN" "$LOGS"
  forget_dev_env
  need "$@"
  NATS_SERVER_BIN=$(nats_program)
  export NATS_SERVER_BIN
  cd "$ROOT" || exit 1
}

# test_needs KIND: the names of that kind in the list.
test_needs() { sed -n "s/^$1  *\([^ ]*\) *\$/\1/p" "$TEST_NEEDS"; }

# need_for_tests: says what was found, then installs the rest.
need_for_tests() {
  local unknown servers environments name found
  unknown=$(sed -n '/^#/d;/^ *$/d;/^server  *[a-z]* *$/d;/^python  *[a-z]* *$/d;p' "$TEST_NEEDS")
  [ -z "$unknown" ] || die "scripts/dev/test-needs: ./dev test cannot install this: $unknown"
  servers=$(test_needs server)
  environments=$(test_needs python)
  say "what the tests need"
  for name in $servers; do
    if found=$(place_of "$name"); then
      note "$name: found, $found"
    else
      note "$name: missing, will be installed"
    fi
  done
  for name in $environments; do
    if has_python_environment "$name"; then
      note "Python packages of tests/$name: found, $(python_environment "$name")"
    else
      note "Python packages of tests/$name: missing, will be installed"
    fi
  done
  # shellcheck disable=SC2086
  prepare $servers
  for name in $environments; do need_python_environment "$name"; done
}

# A test that nobody runs is worse than none, because it looks like one.
no_ignored_tests() {
  local found
  found=$(cd "$ROOT" && grep -rnE --include='*.rs' \
    '#\[(cfg_attr\(.*, *)?ignore|^ *//[/!] *```.*ignore' crates tests) || return 0
  fail "ignored tests:"
  printf '%s\n' "$found" >&2
  return 1
}

# run_tests [ARGS...]: without arguments everything, and a test that was
# skipped is a failure. The last line counts.
run_tests() {
  local log=$LOGS/test-summary.log docs=$LOGS/test-docs.log code=0 counted
  need_for_tests
  no_ignored_tests || exit 1
  # Programs, examples and tests in one call: apart, their features could be
  # unified differently and half the tree be built twice.
  say "building everything"
  cargo build --locked --workspace --all-targets || die "the build failed"
  export AIRLOCK_BIN_DIR=$TARGET/debug
  say "testing"
  [ ! -t 1 ] || export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-always}
  : >"$docs"
  if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --locked --workspace "$@" 2>&1 | tee "$log" || code=1
    # nextest does not run documentation tests. The whole workspace at once, because fewer
    # packages would unify features otherwise and build half of the dependencies again.
    if [ $# -eq 0 ]; then
      say "testing the documentation"
      cargo test --locked --no-fail-fast --doc --workspace 2>&1 | tee "$docs" || code=1
    fi
    counted="$(count_nextest <"$log") $(count_cargo <"$docs")"
  else
    # Documentation tests are part of it.
    cargo test --locked --workspace --no-fail-fast "$@" 2>&1 | tee "$log" || code=1
    counted=$(count_cargo <"$log")
  fi
  # shellcheck disable=SC2086
  end_of_tests "$code" $# "$(total $counted)"
}

# end_of_tests CODE ARGS COUNTS: a chosen test leaves others out; otherwise a test that was
# left out is a failure, and so is a run without a single test.
end_of_tests() {
  local code=$1
  case $3 in
    *skipped*)
      if [ "$2" -eq 0 ]; then
        fail "skipped tests count as failures"
        code=1
      fi
      ;;
    "0 passed, 0 failed") code=1 ;;
  esac
  if [ "$code" -eq 0 ]; then say "all tests passed"; else fail "tests failed"; fi
  printf '%s\n' "$3"
  return "$code"
}

# The version that --strict installs.
CARGO_DENY=0.20.2

# cargo_deny ARGS...: ours, or the system's.
cargo_deny() { PATH=$STATE/bin:$PATH cargo deny "$@"; }

has_cargo_deny() { cargo_deny --version >/dev/null 2>&1; }

need_cargo_deny() {
  has_cargo_deny && return 0
  say "installing cargo-deny $CARGO_DENY into .airlock (a few minutes, once)"
  cargo install --locked --quiet --root "$STATE" "cargo-deny@$CARGO_DENY" && has_cargo_deny
}

# check_dependencies STRICT: licences, bans and sources by the rules of
# deny.toml; 2 when nothing was checked.
#
# There is no package of cargo-deny everywhere, and building it takes minutes,
# so a plain check does without it where it is missing, and says so. A strict
# check is what a release needs: it builds cargo-deny, also asks for known
# vulnerabilities (which needs the network, and may fail without a change of
# ours), and what cannot be checked is a failure.
check_dependencies() {
  if [ -n "$1" ]; then
    need_cargo_deny || { fail "cargo-deny cannot be installed"; return 1; }
    cargo_deny check advisories bans licenses sources
  elif has_cargo_deny; then
    cargo_deny check bans licenses sources
  else
    warn "licences, bans and sources of the dependencies were NOT checked: cargo-deny is missing; ./dev check --strict installs it"
    return 2
  fi
}

# run_checks [--strict]: all of them, even after one has failed.
run_checks() {
  local failed='' unchecked='' strict='' code=0
  case $#:${1:-} in
    0:) ;;
    1:--strict) strict=yes ;;
    *) die "./dev check takes only --strict, but got: $*" ;;
  esac
  need_rust
  cd "$ROOT" || exit 1
  say "formatting"
  cargo fmt --all --check || failed="$failed formatting"
  say "no ignored tests"
  no_ignored_tests || failed="$failed ignored-tests"
  say "shell scripts"
  check_scripts || failed="$failed scripts"
  say "clippy"
  cargo clippy --locked --workspace --all-targets -- -D warnings || failed="$failed clippy"
  say "dependencies"
  check_dependencies "$strict" || code=$?
  case $code in
    0) ;;
    2) unchecked=' (dependencies were NOT checked)' ;;
    *) failed="$failed dependencies" ;;
  esac
  [ -z "$failed" ] || die "failed:$failed$unchecked"
  if [ -n "$unchecked" ]; then say "all other checks passed$unchecked"; else say "all checks passed"; fi
}

check_scripts() {
  local script
  for script in dev .ci/run deploy/ready tests/cap/venv scripts/dev/*.sh; do bash -n "$script" || return 1; done
  if command -v shellcheck >/dev/null; then
    shellcheck -x dev .ci/run deploy/ready tests/cap/venv
  fi
}

run_bench() {
  # shellcheck disable=SC2086
  prepare $SERVERS
  say "building in release"
  # Only what it runs (its worker is airlock-bench itself): every program more costs a
  # fat link of minutes. The profile is the releases' own, so that what is measured is
  # what is shipped.
  cargo build --locked --release --bins -p airlock-bench -p airlock-gateway \
    -p airlock-scheduler -p airlock-safety-kernel || die "the build failed"
  export AIRLOCK_BIN_DIR=$TARGET/release
  # From where the user stands, so that --json FILE means what it says there.
  cd "$CALLED_FROM" || exit 1
  exec "$TARGET/release/airlock-bench" "$@"
}

run_drill() {
  [ "${1:-}" = failover ] || die "which drill? ./dev drill failover"
  # shellcheck disable=SC2086
  prepare $SERVERS etcd
  say "building in release"
  cargo build --locked --release --bin airlock-drill --bin airlock-gateway \
    --bin airlock-scheduler --bin airlock-safety-kernel || die "the build failed"
  cargo build --locked --release -p airlock-worker --example demo-worker || die "the build failed"
  export AIRLOCK_BIN_DIR=$TARGET/release
  cd "$CALLED_FROM" || exit 1
  exec "$TARGET/release/airlock-drill" "$@"
}
