# shellcheck shell=bash
# Tests, checks and the benchmark.

# What the tests start for themselves, through the testkit.
TEST_SERVERS='postgres redis nats'

# Whatever a shell has read from dev.env must not reach the tests: they run on
# servers and keys of their own.
forget_dev_env() {
  local name
  for name in AIRLOCK_URL AIRLOCK_API_KEY AIRLOCK_APPROVER_KEY AIRLOCK_LISTEN NATS_URL REDIS_URL DATABASE_URL SAFETY_POLICY_PATH; do
    unset "$name"
  done
}

prepare() {
  need_rust
  mkdir -p "$RUN" "$LOGS"
  forget_dev_env
  # shellcheck disable=SC2086
  need $TEST_SERVERS
  NATS_SERVER_BIN=$(nats_program)
  export NATS_SERVER_BIN
  cd "$ROOT" || exit 1
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
# skipped is a failure.
run_tests() {
  local summary
  prepare
  need_cap_environment
  no_ignored_tests || exit 1
  # Programs, examples and tests in one call: apart, their features could be
  # unified differently and half the tree be built twice.
  say "building everything"
  cargo build --locked --workspace --all-targets || die "the build failed"
  export AIRLOCK_BIN_DIR=$TARGET/debug
  say "testing"
  if ! cargo nextest --version >/dev/null 2>&1; then
    cargo_test "$@"
  elif [ $# -gt 0 ]; then
    cargo nextest run --locked --workspace "$@" || die "tests failed"
    say "the chosen tests passed"
    return
  else
    summary=$LOGS/test-summary.log
    [ ! -t 1 ] || export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-always}
    cargo nextest run --locked --workspace 2>&1 | tee "$summary" || die "tests failed"
    if without_colours "$summary" | grep -E '^ *Summary .* [1-9][0-9]* skipped' >&2; then
      die "skipped tests count as failures"
    fi
    doc_tests
  fi
  say "all tests passed"
}

without_colours() { sed $'s/\033\\[[0-9;]*m//g' "$1"; }

# Without cargo-nextest. Documentation tests are part of it.
cargo_test() {
  local summary=$LOGS/test-summary.log
  cargo test --locked --workspace --no-fail-fast "$@" 2>&1 | tee "$summary" || die "tests failed"
  if grep -E '^test result: .* [1-9][0-9]* ignored' "$summary" >&2; then
    die "ignored tests count as failures"
  fi
}

# nextest does not run documentation tests. The whole workspace at once, because fewer
# packages would unify features otherwise and build half of the dependencies again.
doc_tests() {
  say "testing the documentation"
  cargo test --locked --doc --workspace || die "documentation tests failed"
}

# run_checks: all of them, even after one has failed.
run_checks() {
  local failed=''
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
  if cargo deny --version >/dev/null 2>&1; then
    say "dependencies"
    # Advisories need the network and change under our feet: not here.
    cargo deny check bans licenses sources || failed="$failed dependencies"
  else
    note "cargo-deny is not installed; the layering is still tested by ./dev test"
  fi
  [ -z "$failed" ] || die "failed:$failed"
  say "all checks passed"
}

check_scripts() {
  local script
  for script in dev .ci/run deploy/ready tests/cap/venv scripts/dev/*.sh; do bash -n "$script" || return 1; done
  if command -v shellcheck >/dev/null; then
    shellcheck -x dev .ci/run deploy/ready tests/cap/venv
  fi
}

run_bench() {
  prepare
  say "building in release"
  cargo build --locked --release --workspace --bins --examples || die "the build failed"
  export AIRLOCK_BIN_DIR=$TARGET/release
  # From where the user stands, so that --json FILE means what it says there.
  cd "$CALLED_FROM" || exit 1
  exec "$TARGET/release/airlock-bench" "$@"
}
