#!/usr/bin/env bash
# Start a Docker engine for the tests of docker-compose.yml on a Debian machine that runs none and can pull no image.
#
#     tests/docker/engine.sh start FOLDER     install what is missing, start the engine, make the base image   (minutes once, then seconds)
#     . FOLDER/env                            DOCKER_HOST and DOCKER_CONFIG for `docker` and `docker compose`
#     tests/docker/engine.sh stop FOLDER
#
# Packages come from the Debian mirror that this machine is configured with. The only base image that the project's Dockerfiles name is made
# from a minimal Debian with its Python. The engine does not change the host's firewall: containers reach one another, and published ports
# are reachable on loopback, but containers cannot reach other hosts. Builds that install packages use the host's network. Needs root.
set -euo pipefail

BASE=python:3.13-slim
SUITE=trixie
HERE=/usr/share/keyrings/debian-archive-keyring.gpg

action=${1:?start or stop}
folder=$(mkdir -p "${2:?a folder}" && cd "$2" && pwd)

mirror() {
    cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2> /dev/null | sed 's/#.*//' | grep -oE 'https?://[^ ]+/debian/?' | head -n 1
}

answers() {
    curl -fs --unix-socket "$folder/docker.sock" http://engine/_ping > /dev/null 2>&1
}

install_engine() {
    if command -v dockerd > /dev/null && command -v debootstrap > /dev/null; then return; fi
    apt-get update -q
    apt-get install -y -q --no-install-recommends docker.io debootstrap iproute2 curl ca-certificates
}

# Install compose and buildx from the release $SUITE. They are Go programs and need only the C library from the system.
install_plugins() {
    local plugins=$folder/config/cli-plugins work=$folder/apt
    if [[ -x $plugins/docker-compose ]]; then return; fi
    mkdir -p "$plugins" "$work"/{lists/partial,cache/archives/partial,unpacked}
    echo "deb [signed-by=$HERE] $(mirror) $SUITE main" > "$work/sources"
    local options=(-q -o "Dir::Etc::sourcelist=$work/sources" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$work/lists"
        -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update
    (cd "$work" && apt-get "${options[@]}" download docker-compose docker-buildx)
    for package in "$work"/*.deb; do dpkg -x "$package" "$work/unpacked"; done
    cp "$work"/unpacked/usr/libexec/docker/cli-plugins/* "$plugins/"
    rm -rf "$work"
}

start_engine() {
    if answers; then return; fi
    rm -f "$folder/docker.sock" "$folder/pid"
    setsid dockerd --host "unix://$folder/docker.sock" --data-root "$folder/data" --exec-root "$folder/exec" --pidfile "$folder/pid" \
        --storage-driver overlay2 --iptables=false --ip6tables=false --ip-forward=false > "$folder/dockerd.log" 2>&1 < /dev/null &
    for _ in $(seq 150); do
        if answers; then return; fi
        sleep 0.2
    done
    echo "the engine did not start:" >&2
    tail -n 5 "$folder/dockerd.log" >&2
    exit 1
}

# Make the base image with the host's certificates and pip settings, so that builds install packages from the same sources as the host.
make_base() {
    if docker image inspect "$BASE" > /dev/null 2>&1; then return; fi
    local root=$folder/root
    rm -rf "$root"
    debootstrap --variant=minbase --include=python3,python3-pip,python3-venv,ca-certificates "$SUITE" "$root" "$(mirror)" > "$folder/debootstrap.log"
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    if [[ -f /etc/pip.conf ]]; then cp /etc/pip.conf "$root/etc/"; fi
    ln -sf python3 "$root/usr/bin/python"
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    tar -C "$root" -c . | docker import --change 'CMD ["python3"]' - "$BASE" > /dev/null
    rm -rf "$root"
}

case $action in
    start)
        install_engine
        install_plugins
        start_engine
        printf 'export DOCKER_HOST=unix://%s DOCKER_CONFIG=%s\n' "$folder/docker.sock" "$folder/config" > "$folder/env"
        # shellcheck source=/dev/null
        . "$folder/env"
        make_base
        docker compose version
        ;;
    stop)
        if [[ -f $folder/pid ]]; then kill "$(cat "$folder/pid")"; fi
        for _ in $(seq 100); do
            if [[ ! -f $folder/pid ]]; then break; fi
            sleep 0.2
        done
        # The engine does not remove its bridge, and the bridge's addresses would be in conflict with the next engine.
        ip link delete docker0 2> /dev/null || true
        ;;
    *)
        echo "start or stop, not $action" >&2
        exit 2
        ;;
esac
