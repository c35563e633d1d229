"""What every run of the test suite has."""

pytest_plugins = ["tests.rfc.plugin"]
