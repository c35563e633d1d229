"""Rules of this project that no ordinary tool knows: imports in native code, and how long files and functions are."""
