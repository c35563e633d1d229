#!/bin/bash
# agent.sh PORT - run in the guest what the host sends over a virtio-serial port, one command at a time.
#   host to guest: "TOKEN BASE64(script)\n"      guest to host: the script's output, then "\nTOKEN STATUS\n"
# The first line sent is "ready". TOKEN is chosen by the host, so that no output can be taken for the end of a command.
exec 3<>"$1" || exit
printf 'ready\n' >&3
while read -r -u 3 token script; do
    base64 -d <<<"$script" >"/run/agent/$token"
    setsid -w /bin/bash "/run/agent/$token" </dev/null >&3 2>&1 3>&-
    printf '\n%s %s\n' "$token" "$?" >&3
    rm -f "/run/agent/$token"
done
