"""Pieces of shell that the launchers' scripts share."""

# Runs "$@", passes SIGTERM on to it whenever it comes, and leaves its exit code in $code.
SUPERVISE = """\
stop='' child=''
trap 'stop=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' TERM
"$@" &
child=$!
[ -z "$stop" ] || kill -TERM "$child" 2>/dev/null
wait "$child"
code=$?
while kill -0 "$child" 2>/dev/null; do
  wait "$child"
  code=$?
done
"""
