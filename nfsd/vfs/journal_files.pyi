"""The file by which the journal of a file system is committed. Implemented in ``journal_files.pyx``."""

class JournalFile:
    """It, once there has been a commit. Not to be asked while there is one."""

    def rested(self) -> int:
        """Its descriptor, which is the caller's to close from now on, if no commit has been made since this was last asked;
        -1: one has, or there is none."""

    def taken(self) -> int:
        """Its descriptor, likewise, in any case; -1: there is none."""
