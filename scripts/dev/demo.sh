# shellcheck shell=bash
# The two demo jobs and what to try after them.

# demo: one job that the policy lets through and one that it refuses, each
# followed through its states. Under another policy than the shipped one the
# first may be refused or held: that is said, and Airlock stays up.
demo() {
  local airlock=$TARGET/debug/airlock key state
  key=demo-$(random_word)
  say "a job that the policy allows"
  if ! "$airlock" job submit job.echo --payload '{"hello":"world"}' --idempotency-key "$key" --wait=30s; then
    # The same key again is the same job, so this answers how it stands.
    state=$("$airlock" job submit job.echo --payload '{"hello":"world"}' --idempotency-key "$key" --json |
      sed -n 's/.*"state": *"\([A-Z_]*\)".*/\1/p') || state=''
    demo_without_success "$state"
    return
  fi
  say "a job that the policy denies, because it is tagged destructive"
  # Being denied is a failure to whoever waits for the job, and a success here.
  "$airlock" job submit job.echo --payload '{"drop":"everything"}' --risk-tag destructive --wait || true
}

# demo_without_success STATE: what the policy decides is no fault of what was started.
demo_without_success() {
  case $1 in
    DENIED)
      warn "the policy in $SAFETY_POLICY_PATH (or a published bundle) denies the demo job; Airlock is up all the same"
      ;;
    APPROVAL_REQUIRED)
      warn "the policy in $SAFETY_POLICY_PATH (or a published bundle) holds the demo job for approval; Airlock is up all the same"
      ;;
    PENDING)
      warn "the demo job still waits; Airlock is up, and airlock job explain says what it waits for"
      ;;
    *)
      fail "the demo job did not succeed${1:+: it is $1}"
      show_tail "$LOGS/$(rest_service || echo airlock).log" 25
      return 1
      ;;
  esac
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
