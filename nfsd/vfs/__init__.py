"""The local file system: handles, attributes, data, locks, under the caller's credentials."""
