#!/bin/sh
# mirror.sh - the mirror that this Debian installs from: what is made of another Debian comes from there too.
sed -n 's/^ *\(URIs: *\|deb \)\(http[^ ]*debian\) *.*/\2/p' /etc/apt/sources.list.d/* /etc/apt/sources.list 2>/dev/null |
    head -n 1
