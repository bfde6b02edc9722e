"""Real servers on this machine's loopback, for tests, examples and benchmarks; `scripts/servers.sh` fetches them."""
