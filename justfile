# Short names for ./dev, which does the work and needs no just.

# List the recipes.
default:
    @just --list

# Install what is missing, build, run everything; Ctrl-C ends it.
up *ARGS:
    ./dev up {{ARGS}}

# End everything that `up` started.
down:
    ./dev down

# What runs, where, and whether it is ready.
status *ARGS:
    ./dev status {{ARGS}}

# What it wrote.
logs *ARGS:
    ./dev logs {{ARGS}}

# Down, and delete the private servers' data.
reset:
    ./dev reset

# The whole test suite, or the tests named.
test *ARGS:
    ./dev test {{ARGS}}

# Formatting, clippy, dependency rules, shell scripts.
check:
    ./dev check

# The benchmark.
bench *ARGS:
    ./dev bench {{ARGS}}

# Break the code in a copy and see that tests notice.
sabotage *ARGS:
    ./dev sabotage {{ARGS}}

# What the continuous integration runs.
ci:
    .ci/run
