# shellcheck shell=bash
# Counting what the test runners report.

# count_nextest: standard input is the output of cargo nextest; prints the numbers passed,
# failed and skipped. What failed in any way, also by its time, has failed.
count_nextest() {
  sed $'s/\033\\[[0-9;]*m//g' | awk '
    /^ *Summary \[.* run: / {
      sub(/^.* run: /, ""); gsub(/\([^)]*\)/, "")
      parts = split($0, part, ",")
      for (i = 1; i <= parts; i++) {
        split(part[i], word, " ")
        if (word[2] == "passed") passed += word[1]
        else if (word[2] == "skipped") skipped += word[1]
        else failed += word[1]
      }
    }
    END { print passed + 0, failed + 0, skipped + 0 }'
}

# count_cargo: the same for the output of cargo test, which has a line for each program.
count_cargo() {
  sed $'s/\033\\[[0-9;]*m//g' | awk '
    /^test result: / {
      sub(/^test result: [^.]*\. /, "")
      parts = split($0, part, ";")
      for (i = 1; i <= parts; i++) {
        split(part[i], word, " ")
        if (word[2] == "passed") passed += word[1]
        else if (word[2] == "failed") failed += word[1]
        else if (word[2] == "ignored" || word[2] == "filtered") skipped += word[1]
      }
    }
    END { print passed + 0, failed + 0, skipped + 0 }'
}

# total PASSED FAILED SKIPPED...: threes added up, as one line for people and programs.
total() {
  local passed=0 failed=0 skipped=0
  while [ $# -gt 0 ]; do
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
    shift 3
  done
  printf '%d passed, %d failed' "$passed" "$failed"
  [ "$skipped" -eq 0 ] || printf ', %d skipped' "$skipped"
  printf '\n'
}
