# shellcheck shell=bash
# Breaks the code on purpose, in a copy, and sees to it that a test notices.
#
# What must stay true: a breakage that no longer applies, does not compile, or
# names a test that is not there or fails anyway is an error, not a success.
# Otherwise this would rot without anybody noticing.
#
# Each file of sabotage/ is one breakage: what it does, the file, the package
# and the test that must turn red, the text to find (exactly once) and what to
# put in its place.

# Copy of the tree, and where it is built. The third-party crates of the usual
# target folder are linked in, so that only our own are built again.
SABOTAGE_TREE=$TARGET/sabotage/tree
SABOTAGE_BUILD=$TARGET/sabotage/build

# field NAME FILE: one line of a breakage.
field() { sed -n "s/^$1: //p" "$2" | head -n 1; }

# block find|replace FILE: a text of a breakage, followed by an x that keeps
# its last newlines.
block() {
  if [ "$1" = find ]; then
    sed -n '/^find:$/,/^replace:$/p' "$2" | sed '1d;$d'
  else
    sed -n '/^replace:$/,$p' "$2" | sed 1d
  fi
  printf x
}

copy_tree() {
  rm -rf "$SABOTAGE_TREE"
  mkdir -p "$SABOTAGE_TREE"
  # With their times, so that what has not changed is not built again.
  (cd "$ROOT" && git ls-files -z -c -o --exclude-standard |
    while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
    tar --null -T - -cf -) | tar -xpf - -C "$SABOTAGE_TREE"
}

# Libraries are linked: whoever builds one anew puts a new file in its place.
# What is written in place is copied, or both folders would change.
seed_build() {
  local to=$SABOTAGE_BUILD/debug
  [ ! -d "$to" ] && [ -d "$TARGET/debug/deps" ] || return 0
  mkdir -p "$to/deps"
  if ! { find "$TARGET/debug/deps" -maxdepth 1 \( -name '*.rlib' -o -name '*.rmeta' -o -name '*.so' \) \
    -exec cp -pl -t "$to/deps" {} + &&
    find "$TARGET/debug/deps" -maxdepth 1 -name '*.d' -exec cp -p -t "$to/deps" {} + &&
    cp -Rp "$TARGET/debug/build" "$TARGET/debug/.fingerprint" "$to/"; } 2>/dev/null; then
    # Not with these tools, or somebody is building: then all of it is built.
    rm -rf "$to"
  fi
}

# break_file FILE: applies a breakage to the copy. Its text must be there once.
break_file() {
  local breakage=$1 path content find replace before after
  path=$SABOTAGE_TREE/$(field file "$breakage")
  content=$(cat "$path" && printf x) || return 1
  content=${content%x}
  find=$(block find "$breakage")
  find=${find%$'\n'x}
  replace=$(block replace "$breakage")
  replace=${replace%x}
  replace=${replace%$'\n'}
  before=${content%%"$find"*}
  after=${content#*"$find"}
  if [ -z "$find" ] || [ "$before" = "$content" ] || [ "${after%%"$find"*}" != "$after" ]; then
    return 1
  fi
  printf '%s%s%s' "$before" "$replace" "$after" >"$path"
}

# run_there PACKAGE TEST...: runs tests of the copy; what they said is in $SAID.
run_there() {
  local package=$1
  shift
  SAID=$(cd "$SABOTAGE_TREE" &&
    CARGO_TARGET_DIR=$SABOTAGE_BUILD cargo test --locked -p "$package" --tests --no-fail-fast \
      -- "$@" 2>&1) || true
  printf '%s\n' "$SAID" >>"$LOGS/sabotage.log"
}

# said TEST WORD: whether this test ended so.
said() { printf '%s\n' "$SAID" | grep -qE "^test (.*::)?$1 (- should panic )?\.\.\. $2\$"; }

# all_green NAME...: every test that is to turn red is green before, or the
# breakages would prove nothing.
all_green() {
  local name package packages tests test bad=0
  packages=$(for name in "$@"; do field package "$ROOT/sabotage/$name.txt"; done | sort -u)
  for package in $packages; do
    tests=$(for name in "$@"; do
      [ "$(field package "$ROOT/sabotage/$name.txt")" != "$package" ] ||
        field test "$ROOT/sabotage/$name.txt"
    done | sort -u)
    # shellcheck disable=SC2086
    run_there "$package" $tests
    for test in $tests; do
      said "$test" ok || { fail "$package: $test is not green to begin with"; bad=1; }
    done
  done
  return $bad
}

# try_breakage FILE: says what came of it in $OUTCOME; fails unless the test
# turned red.
try_breakage() {
  local breakage=$1 test path
  test=$(field test "$breakage")
  path=$(field file "$breakage")
  OUTCOME='no longer applies'
  break_file "$breakage" || return 1
  run_there "$(field package "$breakage")" "$test"
  restore "$path"
  if said "$test" FAILED; then
    OUTCOME=red
    return 0
  elif said "$test" ok; then
    OUTCOME='NOBODY NOTICED'
  else
    OUTCOME='does not compile'
  fi
  return 1
}

# A new time, or what was built of the broken file would be taken for fresh.
restore() { cat "$ROOT/$1" >"$SABOTAGE_TREE/$1"; }

# sabotage [NAME...]: all breakages, or those named.
sabotage() {
  local names=("$@") name breakage failed=0 tried=0
  prepare
  if [ ${#names[@]} -eq 0 ]; then
    for breakage in "$ROOT"/sabotage/*.txt; do
      name=${breakage##*/}
      names+=("${name%.txt}")
    done
  fi
  for name in "${names[@]}"; do
    [ -f "$ROOT/sabotage/$name.txt" ] || die "there is no breakage \"$name\" in sabotage/"
  done
  say "copying the tree"
  copy_tree
  seed_build
  : >"$LOGS/sabotage.log"
  note "what cargo says goes to ${LOGS#"$ROOT"/}/sabotage.log"
  say "testing it unbroken"
  all_green "${names[@]}" || die "mend these first"
  say "breaking it ${#names[@]} times"
  printf '%-20s %-18s %s\n' breakage outcome 'what is broken, and who must notice'
  for name in "${names[@]}"; do
    breakage=$ROOT/sabotage/$name.txt
    try_breakage "$breakage" || failed=$((failed + 1))
    tried=$((tried + 1))
    printf '%-20s %-18s %s: %s\n' "$name" "$OUTCOME" \
      "$(field what "$breakage")" "$(field test "$breakage")"
  done
  [ "$failed" -eq 0 ] || die "$failed of $tried breakages did not turn their test red"
  say "all $tried breakages were noticed"
}
