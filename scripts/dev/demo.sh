# shellcheck shell=bash
# The two demo jobs and what to try after them.

# demo: one job that the policy lets through and one that it refuses, each
# followed through its states.
demo() {
  local airlock=$TARGET/debug/airlock
  say "a job that the policy allows"
  if ! "$airlock" job submit job.echo --payload '{"hello":"world"}' --wait; then
    fail "the demo job did not succeed"
    show_tail "$LOGS/$(rest_service || echo airlock).log" 25
    return 1
  fi
  say "a job that the policy denies, because it is tagged destructive"
  # Being denied is a failure to whoever waits for the job, and a success here.
  "$airlock" job submit job.echo --payload '{"drop":"everything"}' --risk-tag destructive --wait || true
}

next_steps() {
  local airlock=${TARGET#"$ROOT"/}/debug/airlock bold='' plain=''
  if [ -t 1 ]; then bold=$BOLD plain=$PLAIN; fi
  cat <<NEXT

${bold}Airlock runs at $AIRLOCK_URL${plain}   (Ctrl-C ends it)

In another shell:
  cd $ROOT && . .airlock/dev.env

  $airlock job submit job.sleep --payload '{"ms":2000}' --wait
  $airlock job list
  curl -s "\$AIRLOCK_URL/api/v1/jobs?wait=30s" -H "X-API-Key: \$AIRLOCK_API_KEY" \\
    -H 'Content-Type: application/json' -d '{"topic":"job.echo","payload":{"n":1}}'

  ./dev status            what runs where
  ./dev logs -f worker    what it says
  \$EDITOR config/safety.yaml    change the policy: it is read again at once

NEXT
}
