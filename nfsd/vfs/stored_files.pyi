"""Files and names of stores that workers have at hand. Implemented in ``stored_files.pyx``, for native code."""

class StoredDirectories:
    """The names of a store in which workers look up, make and remove files without an interpreter."""

class StoredFile:
    """What ``DataStore.open`` returns of a store whose files workers read and write without an interpreter."""
