# For Debian-like machines: install packages without asking; sourced by the other scripts.
privileged() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

can_install() {
    command -v apt-get >/dev/null 2>&1 && { [ "$(id -u)" = 0 ] || sudo -n true >/dev/null 2>&1; }
}

# The lists of packages may be absent or old: refresh them only if the first attempt fails.
install_package() {
    apt="env DEBIAN_FRONTEND=noninteractive timeout 600 apt-get -qq -o DPkg::Lock::Timeout=120"
    privileged $apt install -y --no-install-recommends "$1" >/dev/null 2>&1 && return 0
    privileged $apt update >/dev/null 2>&1 || return 1
    privileged $apt install -y --no-install-recommends "$1" >/dev/null 2>&1
}
